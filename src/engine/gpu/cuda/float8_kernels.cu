#include "device/cuda/kernel.cuh"
#include "engine/gpu/kernels/float8_kernels.hpp"
#include "engine/gpu/kernels/grouped_product_kernel.hpp"
#include "engine/gpu/kernels/many_rows_kernel.hpp"
#include "engine/gpu/kernels/some_rows_kernel.hpp"

namespace {
constexpr auto kFloat8 = accord::engine::WeightKind::kFloat8;
template <int kRows>
using Product = accord::engine::FewRowsProduct<kRows, kFloat8>;
template <int kRows>
using SomeBFloat16 = accord::engine::SomeRowsProduct<accord::DType::kBFloat16, kFloat8, kRows>;
template <int kRows>
using SomeFloat16 = accord::engine::SomeRowsProduct<accord::DType::kFloat16, kFloat8, kRows>;
template <int kRows>
using Experts = accord::engine::ExpertsFewRows<kRows, kFloat8>;
template <bool kGated>
using ManyFloat32 = accord::engine::ExpertsManyRows<accord::DType::kFloat32, kGated, kFloat8>;
template <bool kGated>
using ManyBFloat16 = accord::engine::ExpertsManyRows<accord::DType::kBFloat16, kGated, kFloat8>;
template <bool kGated>
using ManyFloat16 = accord::engine::ExpertsManyRows<accord::DType::kFloat16, kGated, kFloat8>;
}  // namespace

ACCORD_CUDA_KERNEL(Product<1>);
ACCORD_CUDA_KERNEL(Product<2>);
ACCORD_CUDA_KERNEL(Product<4>);
ACCORD_CUDA_KERNEL(Product<8>);
ACCORD_CUDA_KERNEL(SomeBFloat16<8>);
ACCORD_CUDA_KERNEL(SomeBFloat16<16>);
ACCORD_CUDA_KERNEL(SomeBFloat16<32>);
ACCORD_CUDA_KERNEL(SomeBFloat16<64>);
ACCORD_CUDA_KERNEL(SomeFloat16<8>);
ACCORD_CUDA_KERNEL(SomeFloat16<16>);
ACCORD_CUDA_KERNEL(SomeFloat16<32>);
ACCORD_CUDA_KERNEL(SomeFloat16<64>);
ACCORD_CUDA_KERNEL(accord::engine::ManyRowsProduct<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::ManyRowsProduct<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(accord::engine::RoundRows);
ACCORD_CUDA_KERNEL(accord::engine::WidenRows);
ACCORD_CUDA_KERNEL(accord::engine::ScaleSums);
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
