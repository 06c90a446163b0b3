#pragma once
// Kernels that work element by element, and the form in which kernels take tensors.

#include <initializer_list>
#include <optional>
#include <span>

#include "engine/gpu/kernels/elementwise_kernel.hpp"
#include "engine/program/tensor.hpp"
#include "kernels/activation.hpp"

namespace accord::engine {

struct DeviceRun;
struct Node;

/// Returns the sizes of `layout` for a kernel that iterates over them.
Shape shape_of(const kernels::Layout& layout);
/// Returns a tensor broadcast to `sizes`, without its address. REQUIRES: the tensor can be broadcast to them.
Operand operand_of(const Tensor& tensor, std::span<const std::int64_t> sizes);
/// The same for some dimensions of a tensor.
Shape shape_along(const Tensor& tensor, std::span<const int> dims);
Operand operand_along(const Tensor& tensor, std::span<const int> dims);
/// Merges dimensions that are contiguous with each other in all operands, so that kernels divide less.
void join_dimensions(Shape& shape, std::span<Operand> operands);

/// Views a matrix [rows, columns] as [columns, rows].
Tensor transposed(Tensor matrix);

/// Returns where the kernels of `run` report faults of `node`.
FaultReport report_of(const DeviceRun& run, const Node* node);

/// Runs `call`, whose form and numbers are set, over all of y. The inputs are broadcast to y. Operands of Words have a
/// kernel that is several times as fast.
Step elementwise_step(const Node* node, ElementwiseCall call, const Tensor& y, std::initializer_list<Tensor> inputs);

/// Returns the function of an activation; nullopt for none.
std::optional<kernels::UnaryOp> unary_of(kernels::Activation activation);
Step unary_step(kernels::UnaryOp kind, const Tensor& x, const Tensor& y);
Step binary_step(const Node* node, kernels::BinaryOp kind, const Tensor& a, const Tensor& b, const Tensor& y);
/// y = activation(gate) * x; without an activation gate * x.
Step gate_step(std::optional<kernels::UnaryOp> activation, const Tensor& gate, const Tensor& x, const Tensor& y);
/// Converts to another dtype, or copies. Not for complex numbers.
Step convert_step(const Tensor& x, const Tensor& y);

}  // namespace accord::engine
