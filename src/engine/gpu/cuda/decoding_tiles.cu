#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/decoding_tiles.hpp"

namespace {
template <int kMaxDim>
using TilesOfBFloat16 = accord::engine::DecodingTiles<accord::DType::kBFloat16, kMaxDim>;
template <int kMaxDim>
using TilesOfInt8 = accord::engine::DecodingTiles<accord::DType::kInt8, kMaxDim>;
}  // namespace

ACCORD_CUDA_KERNEL(TilesOfBFloat16<64>);
ACCORD_CUDA_KERNEL(TilesOfBFloat16<96>);
ACCORD_CUDA_KERNEL(TilesOfBFloat16<128>);
ACCORD_CUDA_KERNEL(TilesOfBFloat16<256>);
ACCORD_CUDA_KERNEL(TilesOfInt8<64>);
ACCORD_CUDA_KERNEL(TilesOfInt8<96>);
ACCORD_CUDA_KERNEL(TilesOfInt8<128>);
ACCORD_CUDA_KERNEL(TilesOfInt8<256>);
