#pragma once
// Steps of programs on a device that go element by element, or along rows: what kernels on the CPU do, by kernels of the device.

#include <initializer_list>
#include <vector>

#include "engine/device/elementwise_kernel.hpp"
#include "engine/runtime/tensor.hpp"
#include "kernels/sum.hpp"
#include "kernels/top_k.hpp"

namespace accord::engine {

struct Node;
class Preparation;

/// The sizes of `layout` for a kernel that goes through them.
Shape shape_of(const kernels::Layout& layout);
/// A tensor broadcast to `sizes`, without its address. REQUIRES: it does so.
Operand operand_of(const Tensor& tensor, std::span<const std::int64_t> sizes);
/// Joins dimensions that lie behind each other in all operands, so that kernels divide less.
void join_dimensions(Shape& shape, std::span<Operand> operands);

/// Has `op` take `step` at every run.
void add_step(Preparation& op, const Step& step);
/// A matrix [rows, columns] as [columns, rows].
Tensor transposed(Tensor matrix);

/// What a kernel of `run` tells faults of `node` by.
FaultReport report_of(const DeviceRun& run, const Node* node);

/// `kernel`, whose form and numbers are set, over all of y. The inputs broadcast to it.
Step elementwise_on_device(const Node* node, Elementwise kernel, const Tensor& y, std::initializer_list<Tensor> inputs);

/// The steps of kernels/elementwise.hpp and kernels/index.hpp.
Step unary_on_device(kernels::UnaryOp kind, const Tensor& x, const Tensor& y);
Step binary_on_device(const Node* node, kernels::BinaryOp kind, const Tensor& a, const Tensor& b, const Tensor& y);
Step binary_scalar_on_device(const Node* node, kernels::BinaryOp kind, const Tensor& a, kernels::Scalar b,
                             const Tensor& y);
Step power_on_device(const Tensor& x, double exponent, const Tensor& y);
Step clamp_on_device(const Tensor& x, kernels::Scalar low, kernels::Scalar high, const Tensor& y);
Step where_on_device(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& y);
Step fill_on_device(kernels::Scalar value, const Tensor& y);
Step count_on_device(kernels::Scalar first, kernels::Scalar step, const Tensor& y);
/// Of another dtype or the same; no complex numbers.
Step convert_on_device(const Tensor& x, const Tensor& y);

Step reduce_on_device(kernels::Reduction kind, const Tensor& x, const std::vector<int>& dims, const Tensor& y);
Step cumulative_sum_on_device(const Tensor& x, int dim, const Tensor& y);
/// Rows of x into y, which has no gaps.
Step softmax_on_device(bool logarithm, const Tensor& x, const Rows& rows, const Tensor& y);

/// kernels::TopKCall by tensors: rows in, values and indices without gaps out.
struct BestElements {
  kernels::Extreme extreme = kernels::Extreme::kLargest;
  Tensor x;
  Rows rows;
  std::int64_t k = 0;
  Tensor values, indices;
};
Step top_k_on_device(const BestElements& best);

}  // namespace accord::engine
