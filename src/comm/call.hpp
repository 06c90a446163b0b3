#pragma once
// Checks calls, and converts them to the records that peers compare.

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>

#include "accord/call.hpp"
#include "comm/buffer_checks.hpp"
#include "exec/domain.hpp"
#include "plan/bounds.hpp"

namespace accord::comm {

/// For example "all_gather_v".
std::string name_of(const Call& call);

/// Checks everything that one rank can see by itself: pointers, overlaps, counts that fit each other, dtypes, ops,
/// devices, ranks. The caller is `rank` of `size`.
Status check_call(const Call& call, Rank rank, int size);

/// Whether the input and output of a call have no bytes in common, by their counts.
inline bool has_disjoint_buffers(const Call& call) {
  return are_disjoint(call.input.data, call.input.bytes(), call.output.data, call.output.bytes());
}

/// Returns true if the results of check_call() and record_of() for one of the calls hold for the other: at most the
/// addresses of their memory differ, and input and output have the same relative position in both. Never true for
/// calls with counts of parts or with a factor.
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
         (to_output(a) == to_output(b) || (has_disjoint_buffers(a) && has_disjoint_buffers(b))) &&
         a.division == Division::kEqual && b.division == Division::kEqual && a.op.op() != ReduceOp::kPremulSum;
}

/// The factor of this rank's input; 1 unless the op is premul_sum. REQUIRES: check_call is ok.
std::complex<double> factor_of(const Call& call);

/// The request as `rank` of `size` reports it; peers must agree on it. REQUIRES: check_call is ok.
exec::RequestRecord record_of(const Call& call, Rank rank, int size);

/// This rank's parts. `longest_part` is 0 if the ranks have to exchange their counts first. REQUIRES: check_call is
/// ok, and division is kByCounts.
plan::Extent extent_of(const Call& call, Rank rank);

}  // namespace accord::comm
