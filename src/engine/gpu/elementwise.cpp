// When a step is prepared, its kernel is set up with everything but addresses. A run fills in the addresses and puts
// the kernel into its stream.
#include "engine/gpu/elementwise.hpp"

#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"
#include "engine/graph/graph.hpp"
#include "engine/ops/elementwise.hpp"
#include "engine/program/calls.hpp"
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

}  // namespace

Tensor transposed(Tensor matrix) {
  static constexpr int kOrder[] = {1, 0};
  matrix.layout = kernels::permuted_layout(matrix.layout, kOrder);
  return matrix;
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

Step elementwise_step(const Node* node, Elementwise kernel, const Tensor& y, std::initializer_list<Tensor> inputs) {
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
    placed.report = report_of(device_run(execution), node);
    return launch_over(device_run(execution), placed, placed.count);
  };
}

std::optional<kernels::UnaryOp> unary_of(kernels::Activation activation) {
  switch (activation) {
    case kernels::Activation::kNone: break;
    case kernels::Activation::kGeluErf: return kernels::UnaryOp::kGeluErf;
    case kernels::Activation::kGeluTanh: return kernels::UnaryOp::kGeluTanh;
    case kernels::Activation::kRelu: return kernels::UnaryOp::kRelu;
    case kernels::Activation::kSilu: return kernels::UnaryOp::kSilu;
    case kernels::Activation::kTanh: return kernels::UnaryOp::kTanh;
  }
  return std::nullopt;
}

Step unary_step(kernels::UnaryOp kind, const Tensor& x, const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kUnary, x);
  kernel.unary = kind;
  return elementwise_step(nullptr, kernel, y, {x});
}

Step binary_step(const Node* node, kernels::BinaryOp kind, const Tensor& a, const Tensor& b, const Tensor& y) {
  Elementwise kernel = kernel_of(Form::kBinary, a);
  kernel.binary = kind;
  return elementwise_step(node, kernel, y, {a, b});
}

Step convert_step(const Tensor& x, const Tensor& y) {
  if (x.dtype != y.dtype) return elementwise_step(nullptr, kernel_of(Form::kConvert, x), y, {x});
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
  return elementwise_step(nullptr, kernel_of(Form::kConvert, from), to, {from});
}

namespace gpu {
namespace {

Status add(Preparation& op, Step step) {
  op.step(std::move(step));
  return Status();
}

Status add_unary(Preparation& op, const UnaryCall& call) { return add(op, unary_step(call.kind, call.x, call.y)); }

Status add_binary(Preparation& op, const BinaryCall& call) {
  return add(op, binary_step(&op.node(), call.kind, call.a, call.b, call.y));
}

Status add_binary_scalar(Preparation& op, const BinaryScalarCall& call) {
  Elementwise kernel = kernel_of(Form::kBinaryScalar, call.a);
  kernel.binary = call.kind;
  kernel.first = call.b;
  return add(op, elementwise_step(&op.node(), kernel, call.y, {call.a}));
}

Status add_power(Preparation& op, const PowerCall& call) {
  Elementwise kernel = kernel_of(Form::kPower, call.x);
  kernel.first.real = call.exponent;
  return add(op, elementwise_step(nullptr, kernel, call.y, {call.x}));
}

Status add_clamp(Preparation& op, const ClampCall& call) {
  Elementwise kernel = kernel_of(Form::kClamp, call.x);
  kernel.first = call.low;
  kernel.second = call.high;
  return add(op, elementwise_step(nullptr, kernel, call.y, {call.x}));
}

Status add_where(Preparation& op, const WhereCall& call) {
  return add(op, elementwise_step(nullptr, kernel_of(Form::kWhere, call.a), call.y, {call.condition, call.a, call.b}));
}

Status add_fill(Preparation& op, const FillCall& call) {
  Elementwise kernel = kernel_of(Form::kFill, call.y);
  kernel.first = call.value;
  if (call.y.dtype == DType::kBool) kernel.first.integer = call.value.real != 0.0;
  return add(op, elementwise_step(nullptr, kernel, call.y, {}));
}

Status add_count(Preparation& op, const CountCall& call) {
  Elementwise kernel = kernel_of(Form::kCount, call.y);
  kernel.first = call.first;
  kernel.second = call.step;
  return add(op, elementwise_step(nullptr, kernel, call.y, {}));
}

Status add_convert(Preparation& op, const ConvertCall& call) { return add(op, convert_step(call.from, call.to)); }

}  // namespace

void set_elementwise_steps(StepTable& table) {
  table.set<UnaryCall>(add_unary);
  table.set<BinaryCall>(add_binary);
  table.set<BinaryScalarCall>(add_binary_scalar);
  table.set<PowerCall>(add_power);
  table.set<ClampCall>(add_clamp);
  table.set<WhereCall>(add_where);
  table.set<ConvertCall>(add_convert);
  table.set<FillCall>(add_fill);
  table.set<CountCall>(add_count);
}

}  // namespace gpu
}  // namespace accord::engine
