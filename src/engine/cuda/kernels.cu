#include "device/cuda/kernel.cuh"
#include "engine/device/attention_kernels.hpp"
#include "engine/device/elementwise_kernel.hpp"
#include "engine/device/index_kernels.hpp"
#include "engine/device/product_kernel.hpp"
#include "engine/device/row_kernels.hpp"

ACCORD_CUDA_KERNEL(accord::engine::Elementwise);
ACCORD_CUDA_KERNEL(accord::engine::SoftmaxRows);
ACCORD_CUDA_KERNEL(accord::engine::Reduce);
ACCORD_CUDA_KERNEL(accord::engine::CumulativeSum);
ACCORD_CUDA_KERNEL(accord::engine::GatherRows);
ACCORD_CUDA_KERNEL(accord::engine::Pick);
ACCORD_CUDA_KERNEL(accord::engine::GatherElements);
ACCORD_CUDA_KERNEL(accord::engine::FewRowsProduct<1>);
ACCORD_CUDA_KERNEL(accord::engine::FewRowsProduct<2>);
ACCORD_CUDA_KERNEL(accord::engine::FewRowsProduct<4>);
ACCORD_CUDA_KERNEL(accord::engine::FewRowsProduct<8>);
ACCORD_CUDA_KERNEL(accord::engine::AppendToCache);
ACCORD_CUDA_KERNEL(accord::engine::PagedAttention);
ACCORD_CUDA_KERNEL(accord::engine::CombineSplits);
ACCORD_CUDA_KERNEL(accord::engine::WholeAttention);
ACCORD_CUDA_KERNEL(accord::engine::Rotary);
