#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/code_kernels.hpp"
#include "engine/gpu/kernels/elementwise_words.hpp"
#include "engine/gpu/kernels/heads_kernel.hpp"
#include "engine/gpu/kernels/index_kernels.hpp"
#include "engine/gpu/kernels/row_kernels.hpp"
#include "engine/gpu/kernels/top_k_kernel.hpp"

ACCORD_CUDA_KERNEL(accord::engine::Elementwise);
ACCORD_CUDA_KERNEL(accord::engine::ElementwiseWords<accord::DType::kFloat32>);
ACCORD_CUDA_KERNEL(accord::engine::ElementwiseWords<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::ElementwiseWords<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::CopyWords);
ACCORD_CUDA_KERNEL(accord::engine::SoftmaxRows);
ACCORD_CUDA_KERNEL(accord::engine::Reduce);
ACCORD_CUDA_KERNEL(accord::engine::CumulativeSum);
ACCORD_CUDA_KERNEL(accord::engine::GatherRows);
ACCORD_CUDA_KERNEL(accord::engine::Pick);
ACCORD_CUDA_KERNEL(accord::engine::GatherElements);
ACCORD_CUDA_KERNEL(accord::engine::TopK);
ACCORD_CUDA_KERNEL(accord::engine::EncodeGroups);
ACCORD_CUDA_KERNEL(accord::engine::AddGroups);
ACCORD_CUDA_KERNEL(accord::engine::DecodeGroups);
ACCORD_CUDA_KERNEL(accord::engine::RotateAndAppend<accord::DType::kFloat32>);
ACCORD_CUDA_KERNEL(accord::engine::RotateAndAppend<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::RotateAndAppend<accord::DType::kBFloat16>);
