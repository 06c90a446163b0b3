#pragma once
// Whether a call makes sense, and what it says to peers.

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>

#include "accord/call.hpp"
#include "exec/domain.hpp"
#include "plan/bounds.hpp"

namespace accord::comm {

/// "all_gather_v"
std::string name_of(const Call& call);

/// Checks that a buffer is memory of this machine's: its pointer, count, dtype and device. `name` is what errors call it.
Status check_memory(std::string_view name, const ConstBuffer& buffer);

/// The same but for where it lies: its pointer, count, dtype and kind of device.
Status check_elements(std::string_view name, const ConstBuffer& buffer);

/// Checks what one rank alone can see: pointers, overlaps, counts that fit each other, dtypes, ops, devices, ranks. `rank` of `size` calls.
Status check_call(const Call& call, Rank rank, int size);

/// Whether memory of `a_bytes` at `a` and of `b_bytes` at `b` has no bytes in common.
inline bool lie_apart(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a), second = reinterpret_cast<std::uintptr_t>(b);
  return first >= second + b_bytes || second >= first + a_bytes;
}

/// Whether input and output have none, by their counts.
inline bool lies_apart(const Call& call) {
  return lie_apart(call.input.data, call.input.bytes(), call.output.data, call.output.bytes());
}

/// True if what check_call() and record_of() say of one of the two holds for the other: they differ in where their memory lies at
/// most, and input and output of both lie alike to each other. Not for calls with counts of parts or a factor.
inline bool is_alike(const Call& a, const Call& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.count == y.count && x.dtype == y.dtype && x.device == y.device &&
           (x.data == nullptr) == (y.data == nullptr);
  };
  const auto to_output = [](const Call& call) {
    return reinterpret_cast<std::uintptr_t>(call.output.data) - reinterpret_cast<std::uintptr_t>(call.input.data);
  };
  return a.collective == b.collective && a.root == b.root && a.op.op() == b.op.op() && a.direction == b.direction &&
         same(a.input, b.input) && same(a.output, b.output) &&
         (to_output(a) == to_output(b) || (lies_apart(a) && lies_apart(b))) && a.division == Division::kEqual &&
         b.division == Division::kEqual && a.op.op() != ReduceOp::kPremulSum;
}

/// What this rank's input is multiplied by; 1 unless the op is premul_sum. REQUIRES: check_call is ok.
std::complex<double> factor_of(const Call& call);

/// What peers have to agree on, as `rank` of `size` says it. REQUIRES: check_call is ok.
exec::RequestRecord record_of(const Call& call, Rank rank, int size);

/// This rank's parts; `longest_part` is 0 where the ranks have to tell each other first. REQUIRES: check_call is ok, and division is kByCounts.
plan::Extent extent_of(const Call& call, Rank rank);

}  // namespace accord::comm
