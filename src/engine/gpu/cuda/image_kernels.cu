#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/image_kernels.hpp"

ACCORD_CUDA_KERNEL(accord::engine::GatherPatches<std::uint16_t>);
ACCORD_CUDA_KERNEL(accord::engine::GatherPatches<std::uint32_t>);
ACCORD_CUDA_KERNEL(accord::engine::GatherPatches<accord::device::Words>);
ACCORD_CUDA_KERNEL(accord::engine::DirectConvolution);
ACCORD_CUDA_KERNEL(accord::engine::GroupNorm);
ACCORD_CUDA_KERNEL(accord::engine::UpsampleNearest<std::uint8_t>);
ACCORD_CUDA_KERNEL(accord::engine::UpsampleNearest<std::uint16_t>);
ACCORD_CUDA_KERNEL(accord::engine::UpsampleNearest<std::uint32_t>);
ACCORD_CUDA_KERNEL(accord::engine::UpsampleNearest<accord::device::Words>);
