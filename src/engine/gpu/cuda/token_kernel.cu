#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/token_kernel.hpp"

ACCORD_CUDA_KERNEL(accord::engine::ChooseTokens);
