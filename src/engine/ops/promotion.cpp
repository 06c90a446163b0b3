#include "engine/ops/promotion.hpp"

namespace accord::engine {

DType wider(DType a, DType b) {
  if (kernels::is_narrow_float(a) && kernels::is_narrow_float(b) && a != b) return DType::kFloat32;
  const auto order = [](DType dtype) {
    switch (dtype) {
      case DType::kBool: return 0;
      case DType::kUInt8: return 1;
      case DType::kInt32: return 2;
      case DType::kInt64: return 3;
      case DType::kFloat16:
      case DType::kBFloat16: return 4;
      default: return 5;
    }
  };
  return order(a) >= order(b) ? a : b;
}

DType with_number(DType tensor, DType number) {
  const auto kind = [](DType dtype) { return dtype == DType::kBool ? 0 : kernels::is_real(dtype) ? 2 : 1; };
  return kind(number) > kind(tensor) ? number : tensor;
}

DType common_dtype(const Tensor& a, const Tensor& b) {
  if ((a.dims() == 0) == (b.dims() == 0)) return wider(a.dtype, b.dtype);
  return a.dims() == 0 ? with_number(b.dtype, a.dtype) : with_number(a.dtype, b.dtype);
}

Result<Tensor> promoted(Preparation& op, const Tensor& tensor, DType dtype) {
  // A tensor without dimensions takes the dtype of the others, as a number does.
  if (tensor.dims() == 0 || wider(tensor.dtype, dtype) == dtype) return op.converted(tensor, dtype);
  return op.corrupt("it has an operand of " + std::string(to_string(tensor.dtype)) + " for an output of " +
                    std::string(to_string(dtype)));
}

Result<Sizes> broadcast_sizes(const Preparation& op, std::initializer_list<Tensor> inputs) {
  Sizes sizes;
  for (const Tensor& input : inputs) {
    const auto dims = static_cast<std::size_t>(input.dims());
    if (dims > sizes.size()) sizes.insert(sizes.begin(), dims - sizes.size(), 1);
    for (std::size_t i = 0; i < dims; ++i) {
      std::int64_t& size = sizes[sizes.size() - dims + i];
      const std::int64_t other = input.layout.sizes[i];
      if (size == 1) {
        size = other;
      } else if (other != 1 && other != size) {
        return op.corrupt("its inputs " + sizes_text(inputs.begin()->sizes()) + " and " + sizes_text(input.sizes()) +
                          " do not broadcast");
      }
    }
  }
  return sizes;
}

Status require_number(const Preparation& op, DType dtype) {
  if (kernels::is_real(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64) return Status();
  return op.unsupported("arithmetic has no kernel for " + std::string(to_string(dtype)));
}

}  // namespace accord::engine
