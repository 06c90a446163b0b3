// Each buffer is checked against the size that the call requires. Outputs must not overlap inputs, because some ranks
// write the output while others read the input.
#include "expert/checks.hpp"

#include <fmt/format.h>

#include "comm/internal.hpp"
#include "expert/config.hpp"
#include "expert/rows.hpp"
#include "kernels/row_tree.hpp"

namespace accord::expert {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

/// Expected shape of a buffer of rows.
struct Shape {
  std::string_view name;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  bool exact = false;  ///< otherwise `rows` is a minimum
};

/// Memory of the CPU is all of one device.
bool is_on(const ConstBuffer& buffer, Device device) {
  return buffer.device == device || (buffer.device.type == DeviceType::kCpu && device.type == DeviceType::kCpu);
}

Status check_buffer(const ConstBuffer& buffer, DType dtype, const Shape& shape, Device device) {
  if (buffer.dtype != dtype)
    return invalid(fmt::format("{} is {}, it has to be {}", shape.name, to_string(buffer.dtype), to_string(dtype)));
  const auto needed = static_cast<std::size_t>(shape.rows * shape.width);
  if (buffer.count < needed || (shape.exact && buffer.count != needed))
    return invalid(fmt::format("{} has {} elements, it has to have {}{} x {} = {}", shape.name, buffer.count,
                               shape.exact ? "" : "at least ", shape.rows, shape.width, needed));
  if (buffer.count == 0) return {};
  if (!is_on(buffer, device))
    return invalid(fmt::format("{} is on {}, but the group's device is {}", shape.name, to_string(buffer.device),
                               to_string(device)));
  return comm::check_elements(shape.name, buffer);
}

/// Checks two buffers of one dtype that must be given together or not at all. A buffer without elements may be
/// omitted.
Status check_pair(const ConstBuffer& one, const Shape& shape, const ConstBuffer& other, const Shape& other_shape,
                  Device device, DType dtype = DType::kFloat32) {
  if (!is_given(one) && !is_given(other)) return {};
  if (shape.rows > 0 && !is_given(one))
    return invalid(fmt::format("{} is given without {}", other_shape.name, shape.name));
  if (other_shape.rows > 0 && !is_given(other))
    return invalid(fmt::format("{} is given without {}", shape.name, other_shape.name));
  if (is_given(one)) ACCORD_RETURN_IF_ERROR(check_buffer(one, dtype, shape, device));
  return is_given(other) ? check_buffer(other, dtype, other_shape, device) : Status();
}

/// Dtype that the weights of a call must have: float32 or float64.
DType expected_dtype(const ConstBuffer& one, const ConstBuffer& other) {
  return weights_dtype(one, other) == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

Status check_scaled(const ConstBuffer& rows, std::string_view name, const ConstBuffer& scales) {
  if (!is_given(scales) || is_float8(rows.dtype)) return {};
  return invalid(fmt::format("scales are for float8 only, but {} is {}", name, to_string(rows.dtype)));
}

Status check_dtype(std::string_view name, DType dtype, const ExpertGroupConfig& config) {
  if (kind_of(dtype) == DTypeKind::kFloat && size_of(dtype) <= size_of(config.dtype)) return {};
  return invalid(fmt::format("{} is {}; rows are floats, at most as wide as the group's {}", name, to_string(dtype),
                             to_string(config.dtype)));
}

Status check_disjoint(const ConstBuffer& input, std::string_view name, const Buffer& output,
                      std::string_view output_name) {
  if (comm::are_disjoint(input.data, input.bytes(), output.data, output.bytes())) return {};
  return invalid(fmt::format("{} and {} overlap", name, output_name));
}

Status check_sum(std::string_view name, DType dtype, DType of_rows) {
  if (kernels::can_sum_rows(of_rows, dtype)) return {};
  return invalid(fmt::format("{} is {}, which cannot hold sums of {}", name, to_string(dtype), to_string(of_rows)));
}

Status check_prepared(const Handle& handle) {
  if (handle.prepared) return {};
  return {StatusCode::kWrongState, fmt::format("handle {} is not prepared", handle.number)};
}

}  // namespace

Status check(const ExpertRouting& routing, const Handle& handle, const ExpertGroupConfig& config) {
  const int top_k = handle.layer.top_k;
  const ConstBuffer& ids = routing.ids;
  if (ids.dtype != DType::kInt32 && ids.dtype != DType::kInt64)
    return invalid(fmt::format("ids are {}, they have to be int32 or int64", to_string(ids.dtype)));
  if (ids.count % static_cast<std::size_t>(top_k) != 0)
    return invalid(fmt::format("there are {} ids, which is not a multiple of top_k {}", ids.count, top_k));
  const auto tokens = static_cast<std::int64_t>(ids.count / static_cast<std::size_t>(top_k));
  if (tokens > config.max_tokens_per_rank)
    return invalid(
        fmt::format("there are {} tokens, but max_tokens_per_rank is {}", tokens, config.max_tokens_per_rank));
  ACCORD_RETURN_IF_ERROR(check_buffer(ids, ids.dtype, {"ids", tokens, top_k, true}, config.device));
  const bool needs_weights = config.overflow == OverflowPolicy::kDropByWeight && tokens > 0;
  if (!is_given(routing.weights))
    return needs_weights ? invalid("overflow=drop_by_weight requires weights, but none were given") : Status();
  return check_buffer(routing.weights, DType::kFloat32, {"weights", tokens, top_k, true}, config.device);
}

Status check(const ExpertDispatch& call, const Handle& handle, const ExpertGroupConfig& config) {
  ACCORD_RETURN_IF_ERROR(check_prepared(handle));
  ACCORD_RETURN_IF_ERROR(check_dtype("tokens", call.tokens.dtype, config));
  const std::int64_t tokens = handle.tokens(), rows = handle.min_slots(), scales = scales_of_row(config.hidden);
  ACCORD_RETURN_IF_ERROR(
      check_buffer(call.tokens, call.tokens.dtype, {"tokens", tokens, config.hidden, true}, config.device));
  ACCORD_RETURN_IF_ERROR(
      check_buffer(call.recv_tokens, call.tokens.dtype, {"recv_tokens", rows, config.hidden}, config.device));
  ACCORD_RETURN_IF_ERROR(check_scaled(call.tokens, "tokens", call.scales));
  ACCORD_RETURN_IF_ERROR(check_pair(call.scales, {"scales", tokens, scales, true}, call.recv_scales,
                                    {"recv_scales", rows, scales}, config.device));
  ACCORD_RETURN_IF_ERROR(check_pair(call.weights, {"weights", tokens, handle.layer.top_k, true}, call.recv_weights,
                                    {"recv_weights", rows, 1}, config.device,
                                    expected_dtype(call.weights, call.recv_weights)));
  return check_disjoint(call.tokens, "tokens", call.recv_tokens, "recv_tokens");
}

Status check(const ExpertCombine& call, const Handle& handle, const ExpertGroupConfig& config) {
  ACCORD_RETURN_IF_ERROR(check_prepared(handle));
  ACCORD_RETURN_IF_ERROR(check_dtype("expert_out", call.expert_out.dtype, config));
  const std::int64_t tokens = handle.tokens(), rows = handle.min_slots(), scales = scales_of_row(config.hidden);
  ACCORD_RETURN_IF_ERROR(
      check_buffer(call.expert_out, call.expert_out.dtype, {"expert_out", rows, config.hidden}, config.device));
  ACCORD_RETURN_IF_ERROR(check_scaled(call.expert_out, "expert_out", call.scales));
  if (is_given(call.scales))
    ACCORD_RETURN_IF_ERROR(check_buffer(call.scales, DType::kFloat32, {"scales", rows, scales}, config.device));
  ACCORD_RETURN_IF_ERROR(check_sum("result", call.result.dtype, call.expert_out.dtype));
  ACCORD_RETURN_IF_ERROR(
      check_buffer(call.result, call.result.dtype, {"result", tokens, config.hidden, true}, config.device));
  if (is_given(call.weights))
    ACCORD_RETURN_IF_ERROR(check_buffer(call.weights, expected_dtype(call.weights, {}),
                                        {"weights", tokens, handle.layer.top_k, true}, config.device));
  return check_disjoint(call.expert_out, "expert_out", call.result, "result");
}

Status check(const ExpertDispatchBackward& call, const Handle& handle, const ExpertGroupConfig& config) {
  ACCORD_RETURN_IF_ERROR(check_prepared(handle));
  ACCORD_RETURN_IF_ERROR(check_dtype("grad", call.grad.dtype, config));
  const std::int64_t tokens = handle.tokens(), rows = handle.min_slots();
  ACCORD_RETURN_IF_ERROR(check_buffer(call.grad, call.grad.dtype, {"grad", rows, config.hidden}, config.device));
  ACCORD_RETURN_IF_ERROR(check_sum("grad_tokens", call.grad_tokens.dtype, call.grad.dtype));
  ACCORD_RETURN_IF_ERROR(check_buffer(call.grad_tokens, call.grad_tokens.dtype,
                                      {"grad_tokens", tokens, config.hidden, true}, config.device));
  ACCORD_RETURN_IF_ERROR(check_pair(call.grad_recv_weights, {"grad_recv_weights", rows, 1}, call.grad_weights,
                                    {"grad_weights", tokens, handle.layer.top_k, true}, config.device,
                                    expected_dtype(call.grad_recv_weights, call.grad_weights)));
  return check_disjoint(call.grad, "grad", call.grad_tokens, "grad_tokens");
}

Status check(const ExpertCombineBackward& call, const Handle& handle, const ExpertGroupConfig& config) {
  ACCORD_RETURN_IF_ERROR(check_prepared(handle));
  ACCORD_RETURN_IF_ERROR(check_dtype("grad", call.grad.dtype, config));
  ACCORD_RETURN_IF_ERROR(
      check_buffer(call.grad, call.grad.dtype, {"grad", handle.tokens(), config.hidden, true}, config.device));
  ACCORD_RETURN_IF_ERROR(check_buffer(call.grad_expert_out, call.grad.dtype,
                                      {"grad_expert_out", handle.min_slots(), config.hidden}, config.device));
  return check_disjoint(call.grad, "grad", call.grad_expert_out, "grad_expert_out");
}

}  // namespace accord::expert
