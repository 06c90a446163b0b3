#include "device/cuda/kernel.cuh"
#include "engine/device/token_kernel.hpp"

ACCORD_CUDA_KERNEL(accord::engine::ChooseTokens);
