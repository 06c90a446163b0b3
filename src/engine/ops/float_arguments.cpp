// Arguments that are in float32 already, and have no gaps, are not copied.
#include "engine/ops/float_arguments.hpp"

#include <fmt/format.h>

#include "engine/ops/attention.hpp"

namespace accord::engine {

Result<Tensor> dense_float32(Preparation& op, const Tensor& tensor) {
  ACCORD_RETURN_IF_ERROR(require_floats(op, tensor));
  ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.converted(tensor, DType::kFloat32));
  return op.contiguous(wide);
}

Result<std::optional<Tensor>> dense_float32(Preparation& op, std::string_view name, const Sizes& sizes) {
  if (!op.has(name)) return std::optional<Tensor>();
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor(name));
  if (given.sizes() != sizes) return op.corrupt(fmt::format("its \"{}\" does not fit its other tensors", name));
  ACCORD_ASSIGN_OR_RETURN(const Tensor dense, dense_float32(op, given));
  return std::optional<Tensor>(dense);
}

}  // namespace accord::engine
