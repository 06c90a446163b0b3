// When a step is prepared, its kernel is set up with everything but addresses. A run fills in the addresses and puts
// the kernel into its stream: the one for Words if the shapes, the dtypes and the addresses allow it.
#include "engine/gpu/elementwise.hpp"

#include <algorithm>

#include "engine/gpu/kernels/elementwise_words.hpp"
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

// Returns a call that computes in the arithmetic of `tensor`'s dtype.
ElementwiseCall call_of(Form form, const Tensor& tensor) {
  ElementwiseCall call;
  call.form = form;
  call.real = is_real(tensor);
  return call;
}

bool is_copy(const ElementwiseCall& call) {
  return call.form == Form::kConvert && call.operands[0].dtype == call.operands[1].dtype;
}

/// Returns whether ElementwiseWords has the operation.
bool has_words_kernel(const ElementwiseCall& call) {
  using kernels::BinaryOp;
  using kernels::UnaryOp;
  const auto is_one_of = [](auto op, const auto& ops) { return std::ranges::find(ops, op) != std::end(ops); };
  static constexpr UnaryOp kUnary[] = {UnaryOp::kSilu, UnaryOp::kGeluErf,    UnaryOp::kGeluTanh, UnaryOp::kRelu,
                                       UnaryOp::kTanh, UnaryOp::kSigmoid,    UnaryOp::kExp,      UnaryOp::kSqrt,
                                       UnaryOp::kAbs,  UnaryOp::kReciprocal, UnaryOp::kRsqrt,    UnaryOp::kNeg};
  static constexpr BinaryOp kBinary[] = {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul,
                                         BinaryOp::kDiv, BinaryOp::kMin, BinaryOp::kMax};
  switch (call.form) {
    case Form::kUnary:
    case Form::kGate: return call.real && is_one_of(call.unary, kUnary);
    case Form::kBinary:
    case Form::kBinaryScalar: return call.real && is_one_of(call.binary, kBinary);
    case Form::kClamp: return call.real;
    default: return false;
  }
}

/// Returns the Words of which the operands consist; nullopt if there is no kernel for them. All have the result's dtype
/// but numbers that are broadcast along rows, which may be float32. Neither the result nor a copy's input can be one.
std::optional<WordPlaces> word_rows(const ElementwiseCall& call, std::span<const Operand> operands) {
  const DType dtype = operands.front().dtype;
  const bool copies = is_copy(call);
  if (!copies && !(has_words_kernel(call) && kernels::is_real(dtype))) return std::nullopt;
  const auto each = static_cast<std::int64_t>(sizeof(Words) / size_of(dtype));
  const int last = call.shape.dims - 1;
  if (last < 0 || call.count == 0 || call.count / each > WordPlaces::kMaxCount) return std::nullopt;
  if (call.shape.sizes[last] % each != 0) return std::nullopt;
  for (const Operand& operand : operands) {
    const bool is_number = !copies && &operand != operands.data() && operand.strides[last] == 0;
    if (operand.dtype != dtype && !(is_number && operand.dtype == DType::kFloat32)) return std::nullopt;
    if (is_number) continue;
    const bool has_gaps_of_words =
        std::all_of(operand.strides, operand.strides + last, [&](std::int64_t stride) { return stride % each == 0; });
    if (operand.strides[last] != 1 || !has_gaps_of_words) return std::nullopt;
  }
  WordPlaces rows;
  rows.count = call.count / each;
  rows.words = device::Divisor(static_cast<std::uint32_t>(call.shape.sizes[last] / each));
  rows.outer = call.shape;
  rows.outer.dims = last;
  return rows;
}

bool begin_at_words(const ElementwiseCall& call) {
  const int last = call.shape.dims - 1;
  return std::ranges::all_of(call.operands, [&](const Operand& operand) {
    return operand.strides[last] == 0 || reinterpret_cast<std::uintptr_t>(operand.data) % sizeof(Words) == 0;
  });
}

Status launch_copy(const DeviceRun& run, const ElementwiseCall& call, const WordPlaces& rows) {
  const auto each = static_cast<std::int64_t>(sizeof(Words) / size_of(call.operands[0].dtype));
  CopyWords kernel{rows, {call.operands[0], call.operands[1]}};
  for (Operand& operand : kernel.operands)
    for (std::int64_t& stride : operand.strides) stride /= each;
  return launch_over(run, kernel, ceil_divide(rows.count, CopyWords::kTogether));
}

Status launch_words(const DeviceRun& run, const ElementwiseCall& call, const WordPlaces& rows) {
  if (is_copy(call)) return launch_copy(run, call, rows);
  switch (call.operands[0].dtype) {
    case DType::kFloat32: return launch_over(run, ElementwiseWords<DType::kFloat32>{call, rows}, rows.count);
    case DType::kFloat16: return launch_over(run, ElementwiseWords<DType::kFloat16>{call, rows}, rows.count);
    default: return launch_over(run, ElementwiseWords<DType::kBFloat16>{call, rows}, rows.count);
  }
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

Step elementwise_step(const Node* node, ElementwiseCall call, const Tensor& y, std::initializer_list<Tensor> inputs) {
  const Sizes sizes = y.sizes();
  call.count = y.count();
  call.shape = shape_of(y.layout);
  call.operands[0] = operand_of(y, sizes);
  std::vector<Tensor> tensors = {y};
  for (const Tensor& input : inputs) {
    call.operands[tensors.size()] = operand_of(input, sizes);
    tensors.push_back(input);
  }
  const auto operands = std::span(call.operands).first(tensors.size());
  join_dimensions(call.shape, operands);
  return [=, words = word_rows(call, operands)](const Execution& execution) {
    const DeviceRun& run = device_run(execution);
    ElementwiseCall placed = call;
    for (std::size_t i = 0; i < tensors.size(); ++i) placed.operands[i].data = execution.address(tensors[i]);
    if (words && begin_at_words(placed)) return launch_words(run, placed, *words);
    placed.report = report_of(run, node);
    return launch_over(run, Elementwise{placed}, placed.count);
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
    case kernels::Activation::kReluSquared: break;  // only experts have it
  }
  return std::nullopt;
}

Step unary_step(kernels::UnaryOp kind, const Tensor& x, const Tensor& y) {
  ElementwiseCall call = call_of(Form::kUnary, x);
  call.unary = kind;
  return elementwise_step(nullptr, call, y, {x});
}

Step binary_step(const Node* node, kernels::BinaryOp kind, const Tensor& a, const Tensor& b, const Tensor& y) {
  ElementwiseCall call = call_of(Form::kBinary, a);
  call.binary = kind;
  return elementwise_step(node, call, y, {a, b});
}

Step gate_step(std::optional<kernels::UnaryOp> activation, const Tensor& gate, const Tensor& x, const Tensor& y) {
  if (!activation) return binary_step(nullptr, kernels::BinaryOp::kMul, gate, x, y);
  ElementwiseCall call = call_of(Form::kGate, gate);
  call.unary = *activation;
  return elementwise_step(nullptr, call, y, {gate, x});
}

Step convert_step(const Tensor& x, const Tensor& y) {
  if (x.dtype != y.dtype) return elementwise_step(nullptr, call_of(Form::kConvert, x), y, {x});
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
  return elementwise_step(nullptr, call_of(Form::kConvert, from), to, {from});
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
  ElementwiseCall request = call_of(Form::kBinaryScalar, call.a);
  request.binary = call.kind;
  request.first = call.b;
  return add(op, elementwise_step(&op.node(), request, call.y, {call.a}));
}

Status add_power(Preparation& op, const PowerCall& call) {
  ElementwiseCall request = call_of(Form::kPower, call.x);
  request.first.real = call.exponent;
  return add(op, elementwise_step(nullptr, request, call.y, {call.x}));
}

Status add_clamp(Preparation& op, const ClampCall& call) {
  ElementwiseCall request = call_of(Form::kClamp, call.x);
  request.first = call.low;
  request.second = call.high;
  return add(op, elementwise_step(nullptr, request, call.y, {call.x}));
}

Status add_where(Preparation& op, const WhereCall& call) {
  return add(op, elementwise_step(nullptr, call_of(Form::kWhere, call.a), call.y, {call.condition, call.a, call.b}));
}

Status add_fill(Preparation& op, const FillCall& call) {
  ElementwiseCall request = call_of(Form::kFill, call.y);
  request.first = call.value;
  if (call.y.dtype == DType::kBool) request.first.integer = call.value.real != 0.0;
  return add(op, elementwise_step(nullptr, request, call.y, {}));
}

Status add_count(Preparation& op, const CountCall& call) {
  ElementwiseCall request = call_of(Form::kCount, call.y);
  request.first = call.first;
  request.second = call.step;
  return add(op, elementwise_step(nullptr, request, call.y, {}));
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
