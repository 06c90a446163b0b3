#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/tile_attention_kernels.hpp"

namespace {
template <int kMaxDim>
using WholeBFloat16 = accord::engine::WholeTiles<accord::DType::kBFloat16, kMaxDim>;
template <int kMaxDim>
using WholeFloat16 = accord::engine::WholeTiles<accord::DType::kFloat16, kMaxDim>;
}  // namespace

ACCORD_CUDA_KERNEL(accord::engine::PagedTiles<64>);
ACCORD_CUDA_KERNEL(accord::engine::PagedTiles<128>);
ACCORD_CUDA_KERNEL(accord::engine::PagedTiles<256>);
ACCORD_CUDA_KERNEL(WholeBFloat16<64>);
ACCORD_CUDA_KERNEL(WholeBFloat16<128>);
ACCORD_CUDA_KERNEL(WholeBFloat16<256>);
ACCORD_CUDA_KERNEL(WholeFloat16<64>);
ACCORD_CUDA_KERNEL(WholeFloat16<128>);
ACCORD_CUDA_KERNEL(WholeFloat16<256>);
