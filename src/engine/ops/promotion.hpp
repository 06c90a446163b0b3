#pragma once
// Shared by ops on several tensors: PyTorch's rules for sizes and dtypes.

#include <initializer_list>

#include "engine/program/preparation.hpp"

namespace accord::engine {

/// Returns the sizes that all inputs broadcast to. Fails with kCorrupt if they do not broadcast.
Result<Sizes> broadcast_sizes(const Preparation& op, std::initializer_list<Tensor> inputs);

/// Returns the wider of two dtypes, as PyTorch promotes tensors: bool < uint8 < int32 < int64 < 16-bit floats <
/// float32. Neither float16 nor bfloat16 can hold the other, so the two promote to float32.
DType wider(DType a, DType b);

/// Returns PyTorch's result dtype for a tensor combined with a number, or with a tensor without dimensions, of dtype
/// `number`: the tensor's dtype, unless the number is of a higher kind (bool < integer < float).
DType with_number(DType tensor, DType number);
/// Returns PyTorch's result dtype for two tensors.
DType common_dtype(const Tensor& a, const Tensor& b);

/// Returns `tensor`, or a copy of it in the wider `dtype`. Fails with kCorrupt if `dtype` is narrower.
Result<Tensor> promoted(Preparation& op, const Tensor& tensor, DType dtype);

/// Fails with kUnsupported unless arithmetic has kernels for `dtype`: float32, bfloat16, float16, int32, int64.
Status require_number(const Preparation& op, DType dtype);

}  // namespace accord::engine
