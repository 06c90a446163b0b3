#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/attention_kernels.hpp"
#include "engine/gpu/kernels/decoding_kernel.hpp"
#include "engine/gpu/kernels/expert_kernels.hpp"
#include "engine/gpu/kernels/grouped_product_kernel.hpp"

namespace {
template <int kQueries>
using DecodingFloat32 = accord::engine::DecodingAttention<accord::DType::kFloat32, kQueries>;
template <int kQueries>
using DecodingBFloat16 = accord::engine::DecodingAttention<accord::DType::kBFloat16, kQueries>;
template <int kRows>
using Experts = accord::engine::ExpertsFewRows<kRows, accord::engine::WeightKind::kSameAsRows>;
template <int kQueries>
using DecodingInt8 = accord::engine::DecodingAttention<accord::DType::kInt8, kQueries>;
template <bool kGated>
using ManyFloat32 =
    accord::engine::ExpertsManyRows<accord::DType::kFloat32, kGated, accord::engine::WeightKind::kSameAsRows>;
template <bool kGated>
using ManyBFloat16 =
    accord::engine::ExpertsManyRows<accord::DType::kBFloat16, kGated, accord::engine::WeightKind::kSameAsRows>;
template <bool kGated>
using ManyFloat16 =
    accord::engine::ExpertsManyRows<accord::DType::kFloat16, kGated, accord::engine::WeightKind::kSameAsRows>;
}  // namespace

ACCORD_CUDA_KERNEL(accord::engine::GroupChoices);
ACCORD_CUDA_KERNEL(Experts<1>);
ACCORD_CUDA_KERNEL(Experts<2>);
ACCORD_CUDA_KERNEL(Experts<4>);
ACCORD_CUDA_KERNEL(Experts<8>);
ACCORD_CUDA_KERNEL(ManyFloat32<false>);
ACCORD_CUDA_KERNEL(ManyFloat32<true>);
ACCORD_CUDA_KERNEL(ManyBFloat16<false>);
ACCORD_CUDA_KERNEL(ManyBFloat16<true>);
ACCORD_CUDA_KERNEL(ManyFloat16<false>);
ACCORD_CUDA_KERNEL(ManyFloat16<true>);
ACCORD_CUDA_KERNEL(accord::engine::CombineChoices);
ACCORD_CUDA_KERNEL(accord::engine::GateChoices);
ACCORD_CUDA_KERNEL(accord::engine::PagedAttention);
ACCORD_CUDA_KERNEL(DecodingFloat32<1>);
ACCORD_CUDA_KERNEL(DecodingFloat32<4>);
ACCORD_CUDA_KERNEL(DecodingFloat32<8>);
ACCORD_CUDA_KERNEL(DecodingBFloat16<1>);
ACCORD_CUDA_KERNEL(DecodingBFloat16<4>);
ACCORD_CUDA_KERNEL(DecodingInt8<1>);
ACCORD_CUDA_KERNEL(DecodingInt8<4>);
ACCORD_CUDA_KERNEL(accord::engine::WholeAttention);
