#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/attention_kernels.hpp"
#include "engine/gpu/kernels/code_kernels.hpp"
#include "engine/gpu/kernels/decoding_kernel.hpp"
#include "engine/gpu/kernels/elementwise_kernel.hpp"
#include "engine/gpu/kernels/expert_kernels.hpp"
#include "engine/gpu/kernels/grouped_product_kernel.hpp"
#include "engine/gpu/kernels/index_kernels.hpp"
#include "engine/gpu/kernels/product_kernel.hpp"
#include "engine/gpu/kernels/row_kernels.hpp"
#include "engine/gpu/kernels/top_k_kernel.hpp"

namespace {
template <int kRows>
using Product = accord::engine::FewRowsProduct<kRows, accord::engine::WeightKind::kSameAsRows>;
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

ACCORD_CUDA_KERNEL(accord::engine::Elementwise);
ACCORD_CUDA_KERNEL(accord::engine::SoftmaxRows);
ACCORD_CUDA_KERNEL(accord::engine::Reduce);
ACCORD_CUDA_KERNEL(accord::engine::CumulativeSum);
ACCORD_CUDA_KERNEL(accord::engine::GatherRows);
ACCORD_CUDA_KERNEL(accord::engine::Pick);
ACCORD_CUDA_KERNEL(accord::engine::GatherElements);
ACCORD_CUDA_KERNEL(Product<1>);
ACCORD_CUDA_KERNEL(Product<2>);
ACCORD_CUDA_KERNEL(Product<4>);
ACCORD_CUDA_KERNEL(Product<8>);
ACCORD_CUDA_KERNEL(accord::engine::TopK);
ACCORD_CUDA_KERNEL(accord::engine::EncodeGroups);
ACCORD_CUDA_KERNEL(accord::engine::AddGroups);
ACCORD_CUDA_KERNEL(accord::engine::DecodeGroups);
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
ACCORD_CUDA_KERNEL(accord::engine::AppendToCache);
ACCORD_CUDA_KERNEL(accord::engine::AppendCodes);
ACCORD_CUDA_KERNEL(accord::engine::PagedAttention);
ACCORD_CUDA_KERNEL(DecodingFloat32<1>);
ACCORD_CUDA_KERNEL(DecodingFloat32<4>);
ACCORD_CUDA_KERNEL(DecodingFloat32<8>);
ACCORD_CUDA_KERNEL(DecodingBFloat16<1>);
ACCORD_CUDA_KERNEL(DecodingBFloat16<4>);
ACCORD_CUDA_KERNEL(DecodingInt8<1>);
ACCORD_CUDA_KERNEL(DecodingInt8<4>);
ACCORD_CUDA_KERNEL(accord::engine::WholeAttention);
ACCORD_CUDA_KERNEL(accord::engine::Rotary);
