// A sum in 8-bit codes: every rank encodes its whole input, divided into one piece per rank with equal numbers of
// groups. Piece p is sent to rank p (all_to_all), which adds the pieces up and encodes the sums. All ranks then
// gather the sums. The last pieces are padded with zeros.
#include "engine/ops/all_reduce_step.hpp"

#include <cstring>

#include "base/rounding.hpp"
#include "engine/gpu/kernels/code_kernels.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/ops/collective_steps.hpp"
#include "kernels/coded_rows.hpp"

namespace accord::engine {
namespace {

using kernels::kCodeGroup;
using kernels::kCodeGroupBytes;

// Below this size, an exact sum is at least as fast as the two steps of an encoded one.
constexpr std::size_t kLeastBytes = std::size_t{32} << 10;

// Divides the groups among the threads.
template <typename Body>
Status for_groups(const Execution& execution, std::int64_t groups, const Body& body) {
  const int parts = execution.pool.threads();
  return execution.pool.run(parts, [&](int part) {
    const PartRange range = part_range(groups, 1, part, parts);
    if (range.last > range.first) body(range.first, range.last - range.first);
    return Status();
  });
}

/// The groups of an encoded sum: `all` groups of this rank's input, including those that pad the last pieces, and the
/// `of_piece` groups that each rank adds up.
struct Groups {
  std::int64_t all = 0;
  std::int64_t of_piece = 0;
};

// Each block of threads handles 8 groups, one per warp.
std::int64_t blocks_for(std::int64_t groups) {
  constexpr std::int64_t kOfBlock = 8;
  return quotient_up(groups, kOfBlock);
}

Status encode(const AllReduce& step, const Execution& execution, const Groups& groups) {
  std::byte* const x = execution.address(step.input);
  std::byte* const to = execution.address(step.codes->sent);
  const std::int64_t count = step.input.count();
  if (execution.on_device != nullptr) {
    const EncodeGroups kernel{x, step.input.dtype, count, groups.all, to};
    return launch_blocks(*execution.on_device, kernel, blocks_for(groups.all));
  }
  const std::int64_t filled = quotient_up(count, kCodeGroup);
  const auto element = static_cast<std::int64_t>(size_of(step.input.dtype));
  ACCORD_RETURN_IF_ERROR(for_groups(execution, filled, [&](std::int64_t first, std::int64_t number) {
    kernels::encode_groups(x + first * kCodeGroup * element, step.input.dtype,
                           std::min(number * kCodeGroup, count - first * kCodeGroup), to + first * kCodeGroupBytes);
  }));
  std::memset(to + filled * kCodeGroupBytes, 0, static_cast<std::size_t>((groups.all - filled) * kCodeGroupBytes));
  return Status();
}

// Adds up what was received and writes the sums into this rank's piece of the send buffer.
Status add(const AllReduce& step, const Execution& execution, const Groups& groups, std::byte* mine) {
  const AllReduce::Codes& codes = *step.codes;
  std::byte* const received = execution.address(codes.received);
  const std::int64_t piece = groups.of_piece * kCodeGroupBytes;
  if (execution.on_device != nullptr) {
    const AddGroups kernel{received, codes.ranks, piece, groups.of_piece, mine};
    return launch_blocks(*execution.on_device, kernel, blocks_for(groups.of_piece));
  }
  return for_groups(execution, groups.of_piece, [&](std::int64_t first, std::int64_t number) {
    kernels::add_groups(received + first * kCodeGroupBytes, codes.ranks, piece, number, mine + first * kCodeGroupBytes);
  });
}

Status decode(const AllReduce& step, const Execution& execution) {
  std::byte* const from = execution.address(step.codes->sent);
  std::byte* const y = execution.address(step.output);
  const std::int64_t count = step.output.count();
  if (execution.on_device != nullptr)
    return launch_over(*execution.on_device, DecodeGroups{from, count, y, step.output.dtype}, count);
  const auto element = static_cast<std::int64_t>(size_of(step.output.dtype));
  return for_groups(execution, quotient_up(count, kCodeGroup), [&](std::int64_t first, std::int64_t number) {
    kernels::decode_groups(from + first * kCodeGroupBytes, std::min(number * kCodeGroup, count - first * kCodeGroup),
                           y + first * kCodeGroup * element, step.output.dtype);
  });
}

Status run_codes(const AllReduce& step, const Execution& execution, Communicator& communicator) {
  const AllReduce::Codes& codes = *step.codes;
  const std::int64_t piece = codes.sent.count() / codes.ranks;
  const Groups groups{codes.sent.count() / kCodeGroupBytes, piece / kCodeGroupBytes};
  const Buffer sent = buffer_of(codes.sent, execution);
  Buffer mine = sent;
  mine.data = execution.address(codes.sent) + communicator.rank() * piece;
  mine.count = static_cast<std::size_t>(piece);
  const CallOptions options = call_options(execution);
  ACCORD_RETURN_IF_ERROR(encode(step, execution, groups));
  ACCORD_RETURN_IF_ERROR(communicator.all_to_all(sent, buffer_of(codes.received, execution), options));
  ACCORD_RETURN_IF_ERROR(add(step, execution, groups, static_cast<std::byte*>(mine.data)));
  ACCORD_RETURN_IF_ERROR(communicator.all_gather(mine, sent, options));
  return decode(step, execution);
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
  given.by_itself = op.is_canonical();  // canonical: the fused kernel sums a row in another order than the norm's own
  if (ranks == 0 || exact || given.op != ReduceOp::kSum || !floats || input.bytes() < kLeastBytes) return given;
  const std::int64_t groups_of_rank = quotient_up(quotient_up(input.count(), kCodeGroup), ranks);
  AllReduce::Codes codes;
  codes.ranks = ranks;
  for (Tensor* tensor : {&codes.sent, &codes.received}) {
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.scratch(DType::kUInt8, {ranks * groups_of_rank * kCodeGroupBytes}));
  }
  given.codes = codes;
  given.by_itself = true;
  return given;
}

Status run_step(const AllReduce& step, const Execution& execution) {
  Communicator communicator = *execution.communicators[static_cast<std::size_t>(step.group)];
  const Status status =
      step.codes ? run_codes(step, execution, communicator) : run_plain(step, execution, communicator);
  return status.ok() ? status : status.with_context(node_text(*step.node));
}

}  // namespace accord::engine
