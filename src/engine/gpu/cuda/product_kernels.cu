#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/some_rows_kernel.hpp"

namespace {
constexpr auto kSameAsRows = accord::engine::WeightKind::kSameAsRows;
template <int kRows>
using FewRows = accord::engine::FewRowsProduct<kRows, kSameAsRows>;
template <accord::DType kDType>
using EightRows = accord::engine::SomeRowsProduct<kDType, kSameAsRows, 8>;
}  // namespace

ACCORD_CUDA_KERNEL(FewRows<1>);
ACCORD_CUDA_KERNEL(FewRows<2>);
ACCORD_CUDA_KERNEL(FewRows<4>);
ACCORD_CUDA_KERNEL(FewRows<8>);
ACCORD_CUDA_KERNEL(EightRows<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(EightRows<accord::DType::kFloat16>);
