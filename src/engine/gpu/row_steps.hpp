#pragma once
// Steps of programs on a device that work element by element or along rows: the device's versions of kernels on the
// CPU.

#include <initializer_list>
#include <vector>

#include "engine/gpu/kernels/elementwise_kernel.hpp"
#include "engine/program/tensor.hpp"
#include "kernels/sum.hpp"
#include "kernels/top_k.hpp"

namespace accord::engine {

struct Node;
class Preparation;

/// Returns the sizes of `layout` for a kernel that iterates over them.
Shape shape_of(const kernels::Layout& layout);
/// Returns a tensor broadcast to `sizes`, without its address. REQUIRES: the tensor can be broadcast to them.
Operand operand_of(const Tensor& tensor, std::span<const std::int64_t> sizes);
/// Merges dimensions that are contiguous with each other in all operands, so that kernels divide less.
void join_dimensions(Shape& shape, std::span<Operand> operands);

/// Adds `step` to `op`. It runs in every run.
void add_step(Preparation& op, const Step& step);
/// Views a matrix [rows, columns] as [columns, rows].
Tensor transposed(Tensor matrix);

/// Returns where the kernels of `run` report faults of `node`.
FaultReport report_of(const DeviceRun& run, const Node* node);

/// Runs `kernel`, whose form and numbers are set, over all of y. The inputs are broadcast to y.
Step elementwise_on_device(const Node* node, Elementwise kernel, const Tensor& y, std::initializer_list<Tensor> inputs);

/// The operations of kernels/elementwise.hpp and kernels/index.hpp.
Step unary_on_device(kernels::UnaryOp kind, const Tensor& x, const Tensor& y);
Step binary_on_device(const Node* node, kernels::BinaryOp kind, const Tensor& a, const Tensor& b, const Tensor& y);
Step binary_scalar_on_device(const Node* node, kernels::BinaryOp kind, const Tensor& a, kernels::Scalar b,
                             const Tensor& y);
Step power_on_device(const Tensor& x, double exponent, const Tensor& y);
Step clamp_on_device(const Tensor& x, kernels::Scalar low, kernels::Scalar high, const Tensor& y);
Step where_on_device(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& y);
Step fill_on_device(kernels::Scalar value, const Tensor& y);
Step count_on_device(kernels::Scalar first, kernels::Scalar step, const Tensor& y);
/// Converts to another dtype, or copies. Not for complex numbers.
Step convert_on_device(const Tensor& x, const Tensor& y);

Step reduce_on_device(kernels::Reduction kind, const Tensor& x, const std::vector<int>& dims, const Tensor& y);
Step cumulative_sum_on_device(const Tensor& x, int dim, const Tensor& y);
/// Writes the softmax of rows of x to y, which has no gaps.
Step softmax_on_device(bool logarithm, const Tensor& x, const Rows& rows, const Tensor& y);

/// kernels::TopKCall with tensors: rows in, values and indices without gaps out.
struct BestElements {
  kernels::Extreme extreme = kernels::Extreme::kLargest;
  Tensor x;
  Rows rows;
  std::int64_t k = 0;
  Tensor values, indices;
};
Step top_k_on_device(const BestElements& best);

}  // namespace accord::engine
