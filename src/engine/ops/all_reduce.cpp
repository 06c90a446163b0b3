// A sum in 8-bit codes: every rank encodes its whole input, divided into one piece per rank with equal numbers of
// groups. Piece p is sent to rank p (all_to_all), which adds the pieces up and encodes the sums. All ranks then
// gather the sums. The last pieces are padded with zeros.
#include "engine/ops/all_reduce.hpp"

#include "base/rounding.hpp"
#include "engine/ops/collective_steps.hpp"
#include "kernels/coded_rows.hpp"

namespace accord::engine {
namespace {

Result<Step> coded_sum_step(Preparation& op, const AllReduce& call) {
  const int ranks = op.ranks_with_codes(call.group);
  const std::int64_t groups_of_rank = quotient_up(quotient_up(call.input.count(), kernels::kCodeGroup), ranks);
  const std::int64_t piece = groups_of_rank * kernels::kCodeGroupBytes;
  ACCORD_ASSIGN_OR_RETURN(const Tensor sent, op.scratch(DType::kUInt8, {ranks * piece}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor received, op.scratch(DType::kUInt8, {ranks * piece}));
  ACCORD_ASSIGN_OR_RETURN(const Step encode, op.step_of(EncodeCall{call.input, sent}));
  ACCORD_ASSIGN_OR_RETURN(const Step add, op.step_of(SumCodesCall{call.group, ranks, received, sent}));
  ACCORD_ASSIGN_OR_RETURN(const Step decode, op.step_of(DecodeCall{sent, call.output}));
  Tensor first_piece = sent;
  first_piece.layout = kernels::contiguous_layout(Sizes{piece});
  return call_step(op.node(), call.group, [=](Communicator& communicator, const Execution& execution) {
    const CallOptions options = call_options(execution);
    const Buffer all = buffer_of(sent, execution);
    Tensor mine = first_piece;
    mine.offset += communicator.rank() * piece;
    ACCORD_RETURN_IF_ERROR(encode(execution));
    ACCORD_RETURN_IF_ERROR(communicator.all_to_all(all, buffer_of(received, execution), options));
    ACCORD_RETURN_IF_ERROR(add(execution));
    ACCORD_RETURN_IF_ERROR(communicator.all_gather(const_buffer_of(mine, execution), all, options));
    return decode(execution);
  });
}

}  // namespace

Result<bool> is_in_codes(const Preparation& op, const AllReduce& call) {
  // Below this size, an exact sum is at least as fast as the two steps of an encoded one.
  constexpr std::size_t kMinBytes = std::size_t{32} << 10;
  const DType dtype = call.input.dtype;
  ACCORD_ASSIGN_OR_RETURN(const bool exact, op.flag("exact", false));
  const bool floats = dtype == DType::kFloat32 || kernels::is_narrow_float(dtype);
  return op.ranks_with_codes(call.group) != 0 && !exact && call.op == ReduceOp::kSum && floats &&
         call.input.bytes() >= kMinBytes;
}

Result<Step> all_reduce_step(Preparation& op, const AllReduce& call) {
  ACCORD_ASSIGN_OR_RETURN(const bool in_codes, is_in_codes(op, call));
  if (in_codes) return coded_sum_step(op, call);
  return call_step(op.node(), call.group, [call](Communicator& communicator, const Execution& execution) {
    return run_all_reduce(call, communicator, execution);
  });
}

Status run_all_reduce(const AllReduce& call, Communicator& communicator, const Execution& execution) {
  const Buffer to = buffer_of(call.output, execution);
  const CallOptions options = call_options(execution);
  if (call.input.storage == call.output.storage) return communicator.all_reduce(to, call.op, options);
  return communicator.all_reduce(const_buffer_of(call.input, execution), to, call.op, options);
}

}  // namespace accord::engine
