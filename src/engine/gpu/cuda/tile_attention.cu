#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/tile_attention_kernels.hpp"

namespace {
template <int kMaxDim, int kHigh>
using Paged = accord::engine::PagedTiles<kMaxDim, kHigh>;
using Paged64 = Paged<64, 2>;
using Paged128 = Paged<128, 2>;
using LowPaged64 = Paged<64, 1>;
using LowPaged128 = Paged<128, 1>;
using LowPaged256 = Paged<256, 1>;
template <int kMaxDim, int kHigh>
using WholeBFloat16 = accord::engine::WholeTiles<accord::DType::kBFloat16, kMaxDim, kHigh>;
using WholeBFloat16Of64 = WholeBFloat16<64, 2>;
using WholeBFloat16Of128 = WholeBFloat16<128, 2>;
using LowWholeBFloat16Of64 = WholeBFloat16<64, 1>;
using LowWholeBFloat16Of128 = WholeBFloat16<128, 1>;
using LowWholeBFloat16Of256 = WholeBFloat16<256, 1>;
template <int kMaxDim, int kHigh>
using WholeFloat16 = accord::engine::WholeTiles<accord::DType::kFloat16, kMaxDim, kHigh>;
using WholeFloat16Of64 = WholeFloat16<64, 2>;
using WholeFloat16Of128 = WholeFloat16<128, 2>;
using LowWholeFloat16Of64 = WholeFloat16<64, 1>;
using LowWholeFloat16Of128 = WholeFloat16<128, 1>;
using LowWholeFloat16Of256 = WholeFloat16<256, 1>;
}  // namespace

ACCORD_CUDA_KERNEL(Paged64);
ACCORD_CUDA_KERNEL(Paged128);
ACCORD_CUDA_KERNEL(LowPaged64);
ACCORD_CUDA_KERNEL(LowPaged128);
ACCORD_CUDA_KERNEL(LowPaged256);
ACCORD_CUDA_KERNEL(WholeBFloat16Of64);
ACCORD_CUDA_KERNEL(WholeBFloat16Of128);
ACCORD_CUDA_KERNEL(LowWholeBFloat16Of64);
ACCORD_CUDA_KERNEL(LowWholeBFloat16Of128);
ACCORD_CUDA_KERNEL(LowWholeBFloat16Of256);
ACCORD_CUDA_KERNEL(WholeFloat16Of64);
ACCORD_CUDA_KERNEL(WholeFloat16Of128);
ACCORD_CUDA_KERNEL(LowWholeFloat16Of64);
ACCORD_CUDA_KERNEL(LowWholeFloat16Of128);
ACCORD_CUDA_KERNEL(LowWholeFloat16Of256);
