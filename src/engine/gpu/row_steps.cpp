// When a step is prepared, its kernel is set up with everything but addresses. A run fills in the addresses and puts
// the kernel into its stream.
#include "engine/gpu/row_steps.hpp"

#include "engine/gpu/run.hpp"
#include "engine/gpu/kernels/row_kernels.hpp"
#include "engine/gpu/kernels/top_k_kernel.hpp"
#include "engine/graph/graph.hpp"
#include "engine/program/preparation.hpp"

namespace accord::engine {
namespace {

using Form = Elementwise::Form;

bool is_real(const Tensor& tensor) { return kernels::is_real(tensor.dtype); }

// Returns a kernel that computes in the arithmetic of `tensor`'s dtype.
Elementwise kernel_of(Form form, const Tensor& tensor) {
  Elementwise kernel;
  kernel.form = form;
  kernel.real = is_real(tensor);
  return kernel;
}

Operand operand_along(const Tensor& tensor, std::span<const int> dims) {
  Operand operand{nullptr, tensor.dtype, {}};
  for (std::size_t i = 0; i < dims.size(); ++i) operand.strides[i] = tensor.stride(dims[i]);
  return operand;
}

Shape shape_along(const Tensor& tensor, std::span<const int> dims) {
  Shape shape{static_cast<int>(dims.size()), {}};
  for (std::size_t i = 0; i < dims.size(); ++i) shape.sizes[i] = tensor.size(dims[i]);
  return shape;
}

}  // namespace

void add_step(Preparation& op, const Step& step) {
  op.step_always(step, [&] { return step; });
}

Tensor transposed(Tensor matrix) {
  static constexpr int kOrder[] = {1, 0};
  matrix.layout = kernels::permuted_layout(matrix.layout, kOrder);
  return matrix;
}

Shape shape_of(const kernels::Layout& layout) {
  Shape shape{layout.dims, {}};
  std::copy_n(layout.sizes.begin(), layout.dims, shape.sizes);
  return shape;
}

Operand operand_of(const Tensor& tensor, std::span<const std::int64_t> sizes) {
  const kernels::Layout layout = kernels::broadcast_layout(tensor.layout, sizes).value();
  Operand operand{nullptr, tensor.dtype, {}};
  std::copy_n(layout.strides.begin(), layout.dims, operand.strides);
  return operand;
}

void join_dimensions(Shape& shape, std::span<Operand> operands) {
  Shape joined;
  for (int dim = 0; dim < shape.dims; ++dim) {
    if (shape.sizes[dim] == 1) continue;
    const int last = joined.dims - 1;
    bool joins = last >= 0;
    for (const Operand& operand : operands) {
      joins = joins && operand.strides[last] == operand.strides[dim] * shape.sizes[dim];
    }
    if (!joins) ++joined.dims;
    const int to = joined.dims - 1;
    joined.sizes[to] = joins ? joined.sizes[to] * shape.sizes[dim] : shape.sizes[dim];
    for (Operand& operand : operands) operand.strides[to] = operand.strides[dim];
  }
  shape = joined;
}

FaultReport report_of(const DeviceRun& run, const Node* node) {
  return {run.fault, static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(node))};
}

Step elementwise_on_device(const Node* node, Elementwise kernel, const Tensor& y,
                           std::initializer_list<Tensor> inputs) {
  const Sizes sizes = y.sizes();
  kernel.count = y.count();
  kernel.shape = shape_of(y.layout);
  kernel.operands[0] = operand_of(y, sizes);
  std::vector<Tensor> tensors = {y};
  for (const Tensor& input : inputs) {
    kernel.operands[tensors.size()] = operand_of(input, sizes);
    tensors.push_back(input);
  }
  join_dimensions(kernel.shape, std::span(kernel.operands).first(tensors.size()));
  return [=](const Execution& execution) {
    Elementwise placed = kernel;
    for (std::size_t i = 0; i < tensors.size(); ++i) placed.operands[i].data = execution.address(tensors[i]);
    placed.report = report_of(*execution.on_device, node);
    return launch_over(*execution.on_device, placed, placed.count);
  };
}

Step unary_on_device(kernels::UnaryOp kind, const Tensor& x, const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kUnary, x);
  kernel.unary = kind;
  return elementwise_on_device(nullptr, kernel, y, {x});
}

Step binary_on_device(const Node* node, kernels::BinaryOp kind, const Tensor& a, const Tensor& b, const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kBinary, a);
  kernel.binary = kind;
  return elementwise_on_device(node, kernel, y, {a, b});
}

Step binary_scalar_on_device(const Node* node, kernels::BinaryOp kind, const Tensor& a, kernels::Scalar b,
                             const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kBinaryScalar, a);
  kernel.binary = kind;
  kernel.first = b;
  return elementwise_on_device(node, kernel, y, {a});
}

Step power_on_device(const Tensor& x, double exponent, const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kPower, x);
  kernel.first.real = exponent;
  return elementwise_on_device(nullptr, kernel, y, {x});
}

Step clamp_on_device(const Tensor& x, kernels::Scalar low, kernels::Scalar high, const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kClamp, x);
  kernel.first = low;
  kernel.second = high;
  return elementwise_on_device(nullptr, kernel, y, {x});
}

Step where_on_device(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& y) {
  return elementwise_on_device(nullptr, kernel_of(Form::kWhere, a), y, {condition, a, b});
}

Step fill_on_device(kernels::Scalar value, const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kFill, y);
  kernel.first = value;
  if (y.dtype == DType::kBool) kernel.first.integer = value.real != 0.0;
  return elementwise_on_device(nullptr, kernel, y, {});
}

Step count_on_device(kernels::Scalar first, kernels::Scalar step, const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kCount, y);
  kernel.first = first;
  kernel.second = step;
  return elementwise_on_device(nullptr, kernel, y, {});
}

Step convert_on_device(const Tensor& x, const Tensor& y) {
  if (x.dtype != y.dtype) return elementwise_on_device(nullptr, kernel_of(Form::kConvert, x), y, {x});
  // Elements that keep their dtype are copied as integers of their size.
  Tensor from = x, to = y;
  switch (size_of(x.dtype)) {
    case 1: from.dtype = to.dtype = DType::kUInt8; break;
    case 2: from.dtype = to.dtype = DType::kInt16; break;
    case 4: from.dtype = to.dtype = DType::kInt32; break;
    case 8: from.dtype = to.dtype = DType::kInt64; break;
    default:
      return [dtype = x.dtype](const Execution&) {
        return Status(StatusCode::kUnsupported, "no kernel copies " + std::string(to_string(dtype)));
      };
  }
  return elementwise_on_device(nullptr, kernel_of(Form::kConvert, from), to, {from});
}

Step reduce_on_device(kernels::Reduction kind, const Tensor& x, const std::vector<int>& dims, const Tensor& y) {
  std::vector<int> kept, gone;
  for (int dim = 0; dim < x.dims(); ++dim) {
    const bool reduces = dims.empty() || std::find(dims.begin(), dims.end(), dim) != dims.end();
    (reduces ? gone : kept).push_back(dim);
  }
  Reduce kernel;
  kernel.kind = kind;
  kernel.real = is_real(x);
  kernel.shape = shape_along(x, kept);
  kernel.kept[1] = operand_along(x, kept);
  // y has the dimensions that stay, and perhaps ones in place of the reduced dimensions. It is contiguous.
  kernel.kept[0].dtype = y.dtype;
  std::int64_t stride = 1;
  for (int i = kernel.shape.dims - 1; i >= 0; --i) {
    kernel.kept[0].strides[i] = stride;
    stride *= kernel.shape.sizes[i];
  }
  kernel.outputs = y.count();
  kernel.reduced = shape_along(x, gone);
  kernel.inner[0] = operand_along(x, gone);
  kernel.length = 1;
  for (const int dim : gone) kernel.length *= x.size(dim);
  join_dimensions(kernel.shape, kernel.kept);
  join_dimensions(kernel.reduced, kernel.inner);
  return [=](const Execution& execution) {
    Reduce placed = kernel;
    placed.kept[0].data = execution.address(y);
    placed.kept[1].data = placed.inner[0].data = execution.address(x);
    return launch_blocks(*execution.on_device, placed, placed.outputs);
  };
}

Step cumulative_sum_on_device(const Tensor& x, int dim, const Tensor& y) {
  std::vector<int> others;
  for (int i = 0; i < x.dims(); ++i) {
    if (i != dim) others.push_back(i);
  }
  CumulativeSum kernel;
  kernel.real = is_real(x);
  kernel.length = x.size(dim);
  kernel.lines = kernel.length == 0 ? 0 : x.count() / kernel.length;
  kernel.y_stride = y.stride(dim);
  kernel.x_stride = x.stride(dim);
  kernel.shape = shape_along(x, others);
  kernel.operands[0] = operand_along(y, others);
  kernel.operands[1] = operand_along(x, others);
  return [=](const Execution& execution) {
    CumulativeSum placed = kernel;
    placed.operands[0].data = execution.address(y);
    placed.operands[1].data = execution.address(x);
    return launch_over(*execution.on_device, placed, placed.lines);
  };
}

Step softmax_on_device(bool logarithm, const Tensor& x, const Rows& rows, const Tensor& y) {
  return [=](const Execution& execution) {
    const SoftmaxRows kernel{logarithm,
                             x.dtype,
                             rows.rows,
                             rows.width,
                             {execution.address(x), rows.stride},
                             {execution.address(y), rows.width}};
    return launch_blocks(*execution.on_device, kernel, kernel.rows);
  };
}

Step top_k_on_device(const BestElements& best) {
  TopK kernel;
  kernel.largest = best.extreme == kernels::Extreme::kLargest;
  kernel.dtype = best.x.dtype;
  kernel.rows = best.rows.rows;
  kernel.width = best.rows.width;
  kernel.k = best.k;
  kernel.x_row_stride = best.rows.stride;
  return [=](const Execution& execution) {
    TopK placed = kernel;
    placed.x = execution.address(best.x);
    placed.values = execution.address(best.values);
    placed.indices = execution.data<std::int64_t>(best.indices);
    return launch_blocks(*execution.on_device, placed, placed.rows);
  };
}

}  // namespace accord::engine
