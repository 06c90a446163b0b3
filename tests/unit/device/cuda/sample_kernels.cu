#include "device/cuda/kernel.cuh"
#include "device/sample_kernels.hpp"

ACCORD_CUDA_KERNEL(accord::testing::Scale);
ACCORD_CUDA_KERNEL(accord::testing::AddOne);
ACCORD_CUDA_KERNEL(accord::testing::ReadTooEarly);
ACCORD_CUDA_KERNEL(accord::testing::Meet);
ACCORD_CUDA_KERNEL(accord::testing::Relay);
ACCORD_CUDA_KERNEL(accord::testing::AwaitWord);
ACCORD_CUDA_KERNEL(accord::testing::SetWord);
ACCORD_CUDA_KERNEL(accord::testing::PassOn);
ACCORD_CUDA_KERNEL(accord::testing::MultiplyTiles<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(accord::testing::MultiplyTiles<accord::DType::kFloat16>);
