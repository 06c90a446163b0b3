// In codes: every rank codes all of its part, in as many pieces of equal numbers of groups as there are ranks, and piece p goes to
// rank p (all_to_all), which adds the pieces up and codes the sums; then all gather them. What fills up the last pieces are zeros.
#include "engine/runtime/all_reduce_step.hpp"

#include <cstring>

#include "base/rounding.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/runtime/collective_steps.hpp"
#include "kernels/coded_rows.hpp"

namespace accord::engine {
namespace {

using kernels::kCodeGroup;
using kernels::kCodeGroupBytes;

// Below, exact sums are faster than the two steps of a coded one, or as fast.
constexpr std::size_t kLeastBytes = std::size_t{32} << 10;

// Groups are shared out among the threads.
template <typename Body>
Status for_groups(const Execution& execution, std::int64_t groups, const Body& body) {
  const int parts = execution.pool.threads();
  return execution.pool.run(parts, [&](int part) {
    const PartRange range = part_range(groups, 1, part, parts);
    if (range.last > range.first) body(range.first, range.last - range.first);
    return Status();
  });
}

Status run_codes(const AllReduce& step, const Execution& execution, Communicator& communicator) {
  const AllReduce::Codes& codes = *step.codes;
  const std::int64_t count = step.input.count();
  const std::int64_t groups = quotient_up(count, kCodeGroup);
  const auto element = static_cast<std::int64_t>(size_of(step.input.dtype));
  const std::int64_t piece = codes.sent.count() / codes.ranks;
  std::byte* const sent = execution.address(codes.sent);
  std::byte* const received = execution.address(codes.received);
  std::byte* const mine = sent + communicator.rank() * piece;
  const auto elements = [&](std::int64_t first, std::int64_t number) {
    return std::min(number * kCodeGroup, count - first * kCodeGroup);
  };
  ACCORD_RETURN_IF_ERROR(for_groups(execution, groups, [&](std::int64_t first, std::int64_t number) {
    kernels::encode_groups(execution.address(step.input) + first * kCodeGroup * element, step.input.dtype,
                           elements(first, number), sent + first * kCodeGroupBytes);
  }));
  std::memset(sent + groups * kCodeGroupBytes, 0,
              codes.sent.bytes() - static_cast<std::size_t>(groups * kCodeGroupBytes));
  ACCORD_RETURN_IF_ERROR(communicator.all_to_all(ConstBuffer(sent, codes.sent.bytes(), DType::kUInt8),
                                                 buffer_of(codes.received, execution)));
  ACCORD_RETURN_IF_ERROR(for_groups(execution, piece / kCodeGroupBytes, [&](std::int64_t first, std::int64_t number) {
    kernels::add_groups(received + first * kCodeGroupBytes, codes.ranks, piece, number, mine + first * kCodeGroupBytes);
  }));
  ACCORD_RETURN_IF_ERROR(communicator.all_gather(ConstBuffer(mine, static_cast<std::size_t>(piece), DType::kUInt8),
                                                 buffer_of(codes.sent, execution)));
  return for_groups(execution, groups, [&](std::int64_t first, std::int64_t number) {
    kernels::decode_groups(sent + first * kCodeGroupBytes, elements(first, number),
                           execution.address(step.output) + first * kCodeGroup * element, step.output.dtype);
  });
}

Status run_plain(const AllReduce& step, const Execution& execution, Communicator& communicator) {
  const Buffer to = buffer_of(step.output, execution);
  const CallOptions options = call_options(execution);
  if (step.input.storage == step.output.storage) return communicator.all_reduce(to, step.op, options);
  return communicator.all_reduce(const_buffer_of(step.input, execution), to, step.op, options);
}

}  // namespace

Result<AllReduce> prepare_step(Preparation& op, AllReduce given) {
  const Tensor& input = given.input;
  ACCORD_ASSIGN_OR_RETURN(const bool exact, op.flag("exact", false));
  const int ranks = op.ranks_with_codes(given.group);
  const bool floats = input.dtype == DType::kFloat32 || kernels::is_narrow_float(input.dtype);
  given.node = &op.node();
  if (ranks == 0 || exact || given.op != ReduceOp::kSum || !floats || input.bytes() < kLeastBytes) return given;
  const std::int64_t groups_of_rank = quotient_up(quotient_up(input.count(), kCodeGroup), ranks);
  AllReduce::Codes codes;
  codes.ranks = ranks;
  for (Tensor* tensor : {&codes.sent, &codes.received}) {
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.scratch(DType::kUInt8, {ranks * groups_of_rank * kCodeGroupBytes}));
  }
  given.codes = codes;
  return given;
}

Status run_step(const AllReduce& step, const Execution& execution) {
  Communicator communicator = *execution.communicators[static_cast<std::size_t>(step.group)];
  const Status status =
      step.codes ? run_codes(step, execution, communicator) : run_plain(step, execution, communicator);
  return status.ok() ? status : status.with_context(node_text(*step.node));
}

}  // namespace accord::engine
