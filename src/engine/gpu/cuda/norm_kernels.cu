#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/sum_and_norm.hpp"

namespace {
template <accord::DType kDType>
using NormRows = accord::engine::NormRows<kDType, 1>;
template <accord::DType kDType>
using NormLongRows = accord::engine::NormRows<kDType, accord::engine::kMostKept>;
}  // namespace

ACCORD_CUDA_KERNEL(NormRows<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(NormRows<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(NormRows<accord::DType::kFloat32>);
ACCORD_CUDA_KERNEL(NormLongRows<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(NormLongRows<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(NormLongRows<accord::DType::kFloat32>);
ACCORD_CUDA_KERNEL(accord::engine::NormShortRows<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::NormShortRows<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::NormShortRows<accord::DType::kFloat32>);
ACCORD_CUDA_KERNEL(accord::engine::SumAndNormRows<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::SumAndNormRows<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::SumAndNormRows<accord::DType::kFloat32>);
