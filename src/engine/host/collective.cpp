#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"
#include "engine/host/run.hpp"
#include "engine/host/steps.hpp"
#include "engine/ops/all_reduce.hpp"
#include "kernels/coded_rows.hpp"

namespace accord::engine::host {
namespace {

using kernels::kCodeGroup;
using kernels::kCodeGroupBytes;

// Divides the groups among the threads: body(first, number).
template <typename Body>
Status for_groups(const Execution& execution, std::int64_t groups, const Body& body) {
  ThreadPool& pool = pool_of(execution);
  return pool.run(pool.threads(), [&](int part) {
    const PartRange range = part_range(groups, 1, part, pool.threads());
    if (range.last > range.first) body(range.first, range.last - range.first);
    return Status();
  });
}

Status encode(const EncodeCall& call, const Execution& execution) {
  const std::byte* const x = execution.address(call.x);
  std::byte* const to = execution.address(call.codes);
  const std::int64_t count = call.x.count(), filled = quotient_up(count, kCodeGroup);
  const auto element = static_cast<std::int64_t>(size_of(call.x.dtype));
  ACCORD_RETURN_IF_ERROR(for_groups(execution, filled, [&](std::int64_t first, std::int64_t number) {
    kernels::encode_groups(x + first * kCodeGroup * element, call.x.dtype,
                           std::min(number * kCodeGroup, count - first * kCodeGroup), to + first * kCodeGroupBytes);
  }));
  std::memset(to + filled * kCodeGroupBytes, 0, call.codes.bytes() - to_size(filled * kCodeGroupBytes));
  return Status();
}

Status sum_codes(const SumCodesCall& call, const Execution& execution) {
  const std::int64_t piece = call.received.count() / call.ranks;
  const Rank rank = execution.communicators[static_cast<std::size_t>(call.group)]->rank();
  const std::byte* const received = execution.address(call.received);
  std::byte* const sums = execution.address(call.sums) + rank * piece;
  return for_groups(execution, piece / kCodeGroupBytes, [&](std::int64_t first, std::int64_t number) {
    kernels::add_groups(received + first * kCodeGroupBytes, call.ranks, piece, number, sums + first * kCodeGroupBytes);
  });
}

Status decode(const DecodeCall& call, const Execution& execution) {
  const std::byte* const from = execution.address(call.codes);
  std::byte* const y = execution.address(call.y);
  const std::int64_t count = call.y.count();
  const auto element = static_cast<std::int64_t>(size_of(call.y.dtype));
  return for_groups(execution, quotient_up(count, kCodeGroup), [&](std::int64_t first, std::int64_t number) {
    kernels::decode_groups(from + first * kCodeGroupBytes, std::min(number * kCodeGroup, count - first * kCodeGroup),
                           y + first * kCodeGroup * element, call.y.dtype);
  });
}

Status add_encode(Preparation& op, const EncodeCall& call) {
  op.step([call](const Execution& execution) { return encode(call, execution); });
  return Status();
}

Status add_sum_codes(Preparation& op, const SumCodesCall& call) {
  op.step([call](const Execution& execution) { return sum_codes(call, execution); });
  return Status();
}

Status add_decode(Preparation& op, const DecodeCall& call) {
  op.step([call](const Execution& execution) { return decode(call, execution); });
  return Status();
}

}  // namespace

void set_collective_steps(StepTable& table) {
  table.set<EncodeCall>(add_encode);
  table.set<SumCodesCall>(add_sum_codes);
  table.set<DecodeCall>(add_decode);
}

}  // namespace accord::engine::host
