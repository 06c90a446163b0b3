#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/sum_and_norm.hpp"

ACCORD_CUDA_KERNEL(accord::engine::NormRows);
ACCORD_CUDA_KERNEL(accord::engine::SumAndNormRows<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::SumAndNormRows<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::SumAndNormRows<accord::DType::kFloat32>);
