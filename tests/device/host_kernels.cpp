// The kernels that devices over host memory have, and how a grid of them runs.
#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "device/host_block.hpp"
#include "device/sample_kernels.hpp"
#include "engine/gpu/kernels/attention_kernels.hpp"
#include "engine/gpu/kernels/code_kernels.hpp"
#include "engine/gpu/kernels/decoding_kernel.hpp"
#include "engine/gpu/kernels/decoding_tiles.hpp"
#include "engine/gpu/kernels/elementwise_words.hpp"
#include "engine/gpu/kernels/expert_kernels.hpp"
#include "engine/gpu/kernels/float8_kernels.hpp"
#include "engine/gpu/kernels/grouped_product_kernel.hpp"
#include "engine/gpu/kernels/heads_kernel.hpp"
#include "engine/gpu/kernels/image_kernels.hpp"
#include "engine/gpu/kernels/index_kernels.hpp"
#include "engine/gpu/kernels/many_rows_kernel.hpp"
#include "engine/gpu/kernels/row_kernels.hpp"
#include "engine/gpu/kernels/some_rows_kernel.hpp"
#include "engine/gpu/kernels/sum_and_norm.hpp"
#include "engine/gpu/kernels/tile_attention_kernels.hpp"
#include "engine/gpu/kernels/token_kernel.hpp"
#include "engine/gpu/kernels/top_k_kernel.hpp"
#include "exec/device/run_plan.hpp"
#include "expert/device/packed_rows.hpp"
#include "expert/device/prepare_map.hpp"
#include "expert/device/return_rows.hpp"
#include "expert/device/send_rows.hpp"

namespace accord::testing {
namespace {

template <typename K>
constexpr HostKernel named() {
  HostKernel kernel{.name = K::kName, .code = run_on_host<K>, .starts_early = device::starts_early<K>()};
  if constexpr (device::lanes_of<K>() > 1) {
    kernel.threads = std::min(K::kThreads, kHostWarps * K::kLanes);
    kernel.lanes = K::kLanes;
  }
  return kernel;
}

constexpr std::array kKernels = {
    named<Scale>(),
    named<AddOne>(),
    named<ReadTooEarly>(),
    named<Meet>(),
    named<Relay>(),
    named<AwaitWord>(),
    named<SetWord>(),
    named<PassOn>(),
    named<MultiplyTiles<DType::kBFloat16>>(),
    named<MultiplyTiles<DType::kFloat16>>(),
    named<expert::PrepareMap>(),
    named<expert::CountLate>(),
    named<expert::WriteRouting>(),
    named<expert::BuildMap>(),
    named<expert::SendRows>(),
    named<expert::ReturnRows>(),
    named<expert::PackTokens>(),
    named<expert::UnpackSlots>(),
    named<expert::PackSlots>(),
    named<expert::SumRecords>(),
    named<engine::NormRows<DType::kFloat32, 1>>(),
    named<engine::NormRows<DType::kFloat16, 1>>(),
    named<engine::NormRows<DType::kBFloat16, 1>>(),
    named<engine::NormRows<DType::kFloat32, engine::kMostKept>>(),
    named<engine::NormRows<DType::kFloat16, engine::kMostKept>>(),
    named<engine::NormRows<DType::kBFloat16, engine::kMostKept>>(),
    named<engine::NormShortRows<DType::kFloat32>>(),
    named<engine::NormShortRows<DType::kFloat16>>(),
    named<engine::NormShortRows<DType::kBFloat16>>(),
    named<engine::SumAndNormRows<DType::kFloat32>>(),
    named<engine::SumAndNormRows<DType::kFloat16>>(),
    named<engine::SumAndNormRows<DType::kBFloat16>>(),
    named<engine::Elementwise>(),
    named<engine::ElementwiseWords<DType::kFloat32>>(),
    named<engine::ElementwiseWords<DType::kFloat16>>(),
    named<engine::ElementwiseWords<DType::kBFloat16>>(),
    named<engine::CopyWords>(),
    named<engine::SoftmaxRows>(),
    named<engine::Reduce>(),
    named<engine::CumulativeSum>(),
    named<engine::GatherRows>(),
    named<engine::Pick>(),
    named<engine::GatherElements>(),
    named<engine::FewRowsProduct<1, engine::WeightKind::kSameAsRows>>(),
    named<engine::FewRowsProduct<1, engine::WeightKind::kFloat8>>(),
    named<engine::FewRowsProduct<2, engine::WeightKind::kSameAsRows>>(),
    named<engine::FewRowsProduct<2, engine::WeightKind::kFloat8>>(),
    named<engine::FewRowsProduct<4, engine::WeightKind::kSameAsRows>>(),
    named<engine::FewRowsProduct<4, engine::WeightKind::kFloat8>>(),
    named<engine::FewRowsProduct<8, engine::WeightKind::kSameAsRows>>(),
    named<engine::FewRowsProduct<8, engine::WeightKind::kFloat8>>(),
    named<engine::SomeRowsProduct<DType::kBFloat16, engine::WeightKind::kSameAsRows, 8>>(),
    named<engine::SomeRowsProduct<DType::kBFloat16, engine::WeightKind::kFloat8, 8>>(),
    named<engine::SomeRowsProduct<DType::kBFloat16, engine::WeightKind::kFloat8, 16>>(),
    named<engine::SomeRowsProduct<DType::kBFloat16, engine::WeightKind::kFloat8, 32>>(),
    named<engine::SomeRowsProduct<DType::kBFloat16, engine::WeightKind::kFloat8, 64>>(),
    named<engine::SomeRowsProduct<DType::kFloat16, engine::WeightKind::kSameAsRows, 8>>(),
    named<engine::SomeRowsProduct<DType::kFloat16, engine::WeightKind::kFloat8, 8>>(),
    named<engine::SomeRowsProduct<DType::kFloat16, engine::WeightKind::kFloat8, 16>>(),
    named<engine::SomeRowsProduct<DType::kFloat16, engine::WeightKind::kFloat8, 32>>(),
    named<engine::SomeRowsProduct<DType::kFloat16, engine::WeightKind::kFloat8, 64>>(),
    named<engine::ManyRowsProduct<DType::kBFloat16>>(),
    named<engine::ManyRowsProduct<DType::kFloat16>>(),
    named<engine::RoundRows>(),
    named<engine::WidenRows>(),
    named<engine::ScaleSums>(),
    named<engine::TopK>(),
    named<engine::ChooseTokens<DType::kFloat32>>(),
    named<engine::ChooseTokens<DType::kFloat16>>(),
    named<engine::ChooseTokens<DType::kBFloat16>>(),
    named<engine::GatherPatches<std::uint16_t>>(),
    named<engine::GatherPatches<std::uint32_t>>(),
    named<engine::GatherPatches<device::Words>>(),
    named<engine::DirectConvolution>(),
    named<engine::GroupNorm>(),
    named<engine::UpsampleNearest<std::uint8_t>>(),
    named<engine::UpsampleNearest<std::uint16_t>>(),
    named<engine::UpsampleNearest<std::uint32_t>>(),
    named<engine::UpsampleNearest<device::Words>>(),
    named<engine::EncodeGroups>(),
    named<engine::AddGroups>(),
    named<engine::DecodeGroups>(),
    named<engine::GroupChoices>(),
    named<engine::ExpertsFewRows<1, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsFewRows<1, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsFewRows<2, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsFewRows<2, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsFewRows<4, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsFewRows<4, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsFewRows<8, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsFewRows<8, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsManyRows<DType::kFloat32, false, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsManyRows<DType::kFloat32, false, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsManyRows<DType::kFloat32, true, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsManyRows<DType::kFloat32, true, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsManyRows<DType::kBFloat16, false, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsManyRows<DType::kBFloat16, false, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsManyRows<DType::kBFloat16, true, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsManyRows<DType::kBFloat16, true, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsManyRows<DType::kFloat16, false, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsManyRows<DType::kFloat16, false, engine::WeightKind::kFloat8>>(),
    named<engine::ExpertsManyRows<DType::kFloat16, true, engine::WeightKind::kSameAsRows>>(),
    named<engine::ExpertsManyRows<DType::kFloat16, true, engine::WeightKind::kFloat8>>(),
    named<engine::CombineChoices>(),
    named<engine::GateChoices>(),
    named<engine::RotateAndAppend<DType::kFloat32>>(),
    named<engine::RotateAndAppend<DType::kFloat16>>(),
    named<engine::RotateAndAppend<DType::kBFloat16>>(),
    named<engine::PagedAttention>(),
    named<engine::DecodingAttention<DType::kFloat32, 1>>(),
    named<engine::DecodingAttention<DType::kFloat32, 4>>(),
    named<engine::DecodingAttention<DType::kFloat32, 8>>(),
    named<engine::DecodingAttention<DType::kBFloat16, 1>>(),
    named<engine::DecodingAttention<DType::kBFloat16, 4>>(),
    named<engine::DecodingAttention<DType::kInt8, 1>>(),
    named<engine::DecodingAttention<DType::kInt8, 4>>(),
    named<engine::WholeAttention>(),
    named<engine::DecodingTiles<DType::kBFloat16, 64>>(),
    named<engine::DecodingTiles<DType::kBFloat16, 96>>(),
    named<engine::DecodingTiles<DType::kBFloat16, 128>>(),
    named<engine::DecodingTiles<DType::kBFloat16, 256>>(),
    named<engine::DecodingTiles<DType::kInt8, 64>>(),
    named<engine::DecodingTiles<DType::kInt8, 96>>(),
    named<engine::DecodingTiles<DType::kInt8, 128>>(),
    named<engine::DecodingTiles<DType::kInt8, 256>>(),
    named<engine::PagedTiles<64, 1>>(),
    named<engine::PagedTiles<64, 2>>(),
    named<engine::PagedTiles<128, 1>>(),
    named<engine::PagedTiles<128, 2>>(),
    named<engine::PagedTiles<256, 1>>(),
    named<engine::WholeTiles<DType::kBFloat16, 64, 1>>(),
    named<engine::WholeTiles<DType::kBFloat16, 64, 2>>(),
    named<engine::WholeTiles<DType::kBFloat16, 128, 1>>(),
    named<engine::WholeTiles<DType::kBFloat16, 128, 2>>(),
    named<engine::WholeTiles<DType::kBFloat16, 256, 1>>(),
    named<engine::WholeTiles<DType::kFloat16, 64, 1>>(),
    named<engine::WholeTiles<DType::kFloat16, 64, 2>>(),
    named<engine::WholeTiles<DType::kFloat16, 128, 1>>(),
    named<engine::WholeTiles<DType::kFloat16, 128, 2>>(),
    named<engine::WholeTiles<DType::kFloat16, 256, 1>>(),
};

template <std::size_t... kDTypes>
constexpr std::array<HostKernel, sizeof...(kDTypes)> run_plan_kernels(std::index_sequence<kDTypes...>) {
  return {named<exec::RunPlan<static_cast<DType>(kDTypes)>>()...};
}
constexpr std::array kRunPlanKernels = run_plan_kernels(std::make_index_sequence<kDTypeCount>());

}  // namespace

const HostKernel* host_kernel(const char* name) {
  for (const std::span<const HostKernel> kernels :
       {std::span<const HostKernel>(kKernels), std::span<const HostKernel>(kRunPlanKernels)})
    for (const HostKernel& kernel : kernels)
      if (kernel.name == name) return &kernel;
  return nullptr;
}

HostBlocks blocks_of(const HostKernel& kernel, const void* arguments, const device::Grid& grid) {
  return {.code = kernel.code,
          .arguments = arguments,
          .threads = std::min(kernel.threads, std::max(grid.threads / kernel.lanes, 1) * kernel.lanes),
          .lanes = kernel.lanes,
          .last = grid.blocks,
          .blocks = grid.blocks,
          .shared_bytes = grid.shared_bytes,
          .may_wait = grid.together || grid.blocks == 1,
          .starts_early = kernel.starts_early};
}

void run_grid(const HostKernel& kernel, const void* arguments, const device::Grid& grid) {
  const auto run = [&](int first, int last) {
    HostBlocks some = blocks_of(kernel, arguments, grid);
    some.first = first;
    some.last = last;
    run_blocks(some);
  };
  if (!grid.together) return run(0, grid.blocks);
  std::vector<std::thread> blocks;
  for (int block = 1; block < grid.blocks; ++block) blocks.emplace_back([&, block] { run(block, block + 1); });
  run(0, 1);
  for (std::thread& block : blocks) block.join();
}

}  // namespace accord::testing
