// The library takes matrices whose rows, or columns, have no gaps. A transposed view of such a matrix is multiplied
// without a copy.
#include "engine/gpu/library_product.hpp"

#include <algorithm>

#include "device/product_timing.hpp"
#include "engine/gpu/run.hpp"

namespace accord::engine {
namespace {

/// c = a * b (+ bias), without addresses. a and c have a row for each row of the result.
struct LibraryProduct {
  device::Product call;
  Tensor a, b, c;
  std::optional<Tensor> bias, a_scales, b_scales;

  Status run(const Execution& execution) const {
    device::Product placed = call;
    placed.a.data = execution.address(a);
    placed.b.data = execution.address(b);
    placed.c.data = execution.address(c);
    if (bias) placed.bias = execution.address(*bias);
    if (a_scales) placed.a_scales = execution.data<const float>(*a_scales);
    if (b_scales) placed.b_scales = execution.data<const float>(*b_scales);
    const DeviceRun& run = device_run(execution);
    placed.workspace = run.workspace;
    ACCORD_RETURN_IF_ERROR(device::choose_fastest(run.blas, run.runtime, placed, run.device, run.stream));
    return run.blas.multiply(placed, run.device, run.stream);
  }
};

bool has_contiguous_rows(const Tensor& tensor) {
  const int last = tensor.dims() - 1;
  return (tensor.size(last) == 1 || tensor.stride(last) == 1) && tensor.stride(last - 1) >= tensor.size(last);
}

bool has_contiguous_columns(const Tensor& tensor) {
  const int last = tensor.dims() - 1;
  return (tensor.size(last - 1) == 1 || tensor.stride(last - 1) == 1) && tensor.stride(last) >= tensor.size(last - 1);
}

device::Matrices matrices_of(const Tensor& tensor, int row_dim) {
  const int other = row_dim == tensor.dims() - 1 ? row_dim - 1 : row_dim + 1;
  return {nullptr, tensor.dtype, std::max(tensor.stride(row_dim), tensor.size(other)),
          tensor.dims() == 3 ? tensor.stride(0) : 0};
}

LibraryProduct product_of(const Tensor& a, const Tensor& b, const Tensor& c, const ProductOptions& options) {
  LibraryProduct product;
  device::Product& call = product.call;
  const bool in_columns = !has_contiguous_rows(b) && has_contiguous_columns(b);
  call.second_layout = in_columns ? device::SecondLayout::kRows : device::SecondLayout::kColumns;
  const int dims = a.dims();
  call.m = a.size(dims - 2);
  call.k = a.size(dims - 1);
  call.n = b.size(dims - 1);
  call.batch = dims == 3 ? a.size(0) : 1;
  call.a = matrices_of(a, dims - 2);
  call.b = matrices_of(b, in_columns ? dims - 1 : dims - 2);
  call.c = matrices_of(c, dims - 2);
  call.alpha = options.alpha;
  call.beta = options.beta;
  call.epilogue = options.epilogue;
  call.uses_choice = options.choice == KernelChoice::kFastest;
  product.a = a;
  product.b = b;
  product.c = c;
  product.bias = options.bias;
  product.a_scales = options.a_scales;
  product.b_scales = options.b_scales;
  return product;
}

}  // namespace

Result<bool> has_library_product(Preparation& op, const Tensor& a, const Tensor& b, const Tensor& c,
                                 const ProductOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(device::Blas* const blas, device::blas_of(op.device().type));
  device::Product call = product_of(a, b, c, options).call;
  // has() only looks at which addresses are null, but the library looks at their alignment: that of device memory.
  alignas(256) static constexpr float kNonNull = 0.0F;
  if (options.bias) call.bias = &kNonNull;
  if (options.a_scales) call.a_scales = &kNonNull;
  if (options.b_scales) call.b_scales = &kNonNull;
  call.workspace = const_cast<float*>(&kNonNull);
  return blas->has(call, op.device());
}

Status add_library_product(Preparation& op, Tensor a, Tensor b, const Tensor& c, const ProductOptions& options) {
  ACCORD_RETURN_IF_ERROR(op.require(a, {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3FN}));
  const bool from_float8 = a.dtype == DType::kFloat8E4M3FN;
  if (a.dtype != b.dtype || (c.dtype != a.dtype && c.dtype != DType::kFloat32 && !from_float8)) {
    return op.unsupported("its matrices have different dtypes");
  }
  if (!has_contiguous_rows(a)) {
    ACCORD_ASSIGN_OR_RETURN(a, op.contiguous(a));
  }
  if (!has_contiguous_rows(b) && !has_contiguous_columns(b)) {
    ACCORD_ASSIGN_OR_RETURN(b, op.contiguous(b));
  }
  const LibraryProduct product = product_of(a, b, c, options);
  if (c.count() == 0) return Status();
  if (product.call.k == 0) return op.unsupported("a product with an inner dimension of 0 has no kernel");
  op.step([product](const Execution& execution) { return product.run(execution); });
  return Status();
}

}  // namespace accord::engine
