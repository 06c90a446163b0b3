#include "device/cuda/kernel.cuh"
#include "expert/device/row_kernels.hpp"
#include "expert/device/sum_kernel.hpp"

ACCORD_CUDA_KERNEL(accord::expert::StageTokens);
ACCORD_CUDA_KERNEL(accord::expert::PullSlots);
ACCORD_CUDA_KERNEL(accord::expert::PushSlots);
ACCORD_CUDA_KERNEL(accord::expert::CopyWeights);
ACCORD_CUDA_KERNEL(accord::expert::SumRows);
