#pragma once
// What the elementwise ops have in common: broadcasting, and steps that are shared among threads.

#include <initializer_list>

#include "engine/runtime/preparation.hpp"
#include "kernels/elementwise.hpp"

namespace accord::engine {

/// The sizes that all inputs broadcast to; kCorrupt if they do not.
Result<Sizes> broadcast_sizes(const Preparation& op, std::initializer_list<Tensor> inputs);

/// The wider of two dtypes, as PyTorch promotes tensors: bool < uint8 < int32 < int64 < 16-bit floats < float32. Of
/// float16 and bfloat16 neither holds the other: that is float32.
DType wider(DType a, DType b);

/// PyTorch's result dtype of a tensor and a number, or a tensor without dimensions, of dtype `number`: the tensor's
/// dtype, unless the number is of a higher kind (bool < integer < float).
DType with_number(DType tensor, DType number);
/// PyTorch's result dtype of two tensors.
DType common_dtype(const Tensor& a, const Tensor& b);

/// `tensor`, or a copy of it in the wider `dtype`; kCorrupt if it is narrower.
Result<Tensor> promoted(Preparation& op, const Tensor& tensor, DType dtype);

/// kUnsupported unless `dtype` is one that arithmetic has kernels for: float32, int32, int64.
Status require_number(const Preparation& op, DType dtype);

/// Add the step y = a op b, y = a op scalar, y = op(x).
void add_binary(Preparation& op, kernels::BinaryOp kind, const Tensor& a, const Tensor& b, const Tensor& y);
void add_binary_scalar(Preparation& op, kernels::BinaryOp kind, const Tensor& a, kernels::Scalar b, const Tensor& y);
void add_unary(Preparation& op, kernels::UnaryOp kind, const Tensor& x, const Tensor& y);

}  // namespace accord::engine
