#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/token_kernel.hpp"

ACCORD_CUDA_KERNEL(accord::engine::ChooseTokens<accord::DType::kFloat32>);
ACCORD_CUDA_KERNEL(accord::engine::ChooseTokens<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::ChooseTokens<accord::DType::kBFloat16>);
