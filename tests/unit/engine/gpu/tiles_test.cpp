// Attention of many rows on tensor cores: the kernels by themselves, in blocks of several sizes, compared with the
// formula; and in an engine, compared with the CPU.
#include <cmath>

#include "engine/gpu/kernels/tile_attention_kernels.hpp"
#include "unit/engine/gpu/one_attention.hpp"
#include "unit/engine/gpu/paged_sequences.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using accord::testing::OneAttention;
using accord::testing::PagedCase;
using accord::testing::PagedSequences;
using accord::testing::run_blocks;
using accord::testing::some_numbers;

// Parts of a softmax, and the results, are rounded to bfloat16: an error of 2^-9 each, for values below 2.
constexpr float kError = 0.012F;

template <int kMaxDim, int kHigh>
std::vector<float> by_tiles(const PagedCase& of, PagedSequences& sequences, int few_rows = 0) {
  return sequences.by([&](PagedCall call) {
    using Tiles = PagedTiles<kMaxDim, kHigh>;
    call.rows_of = RowsOf::kLongSequences;
    call.few_rows = few_rows;
    run_blocks(Tiles{call}, 2, of.size, Tiles::Attend::shared_bytes());
  });
}

class DeviceTiles : public accord::testing::DeviceEngines {
 protected:
  static PagedCase in_bfloat16(PagedCase of) {
    of.cache = of.queries = DType::kBFloat16;
    if (of.size.lanes == 1) of.size = {64, 32};
    return of;
  }
  template <int kMaxDim>
  static void expect_formula(const PagedCase& given) {
    const PagedCase of = in_bfloat16(given);
    PagedSequences sequences(of);
    const std::vector<float> expected = sequences.by_formula(), low = by_tiles<kMaxDim, 1>(of, sequences);
    expect_near(low, expected, kError);
    if constexpr (kMaxDim <= 128) {
      const std::vector<float> high = by_tiles<kMaxDim, 2>(of, sequences);
      EXPECT_EQ(high, low);
    }
  }
};

TEST_F(DeviceTiles, blocks_of_any_number_of_warps_match_the_formula) {
  for (const int warps : {1, 2, 4}) {
    SCOPED_TRACE(warps);
    expect_formula<64>({.heads = 2,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .value_dim = 64,
                        .sequences = {{.rows = 70}},
                        .size = {warps * 32, 32}});
  }
}

TEST_F(DeviceTiles, heads_of_all_sizes) {
  const auto sized = [](std::int64_t head_dim, std::int64_t value_dim) {
    return PagedCase{.head_dim = head_dim, .value_dim = value_dim, .sequences = {{.rows = 19, .context = 50}}};
  };
  expect_formula<64>(sized(16, 16));
  expect_formula<64>(sized(48, 64));
  expect_formula<64>(sized(64, 32));
  expect_formula<128>(sized(80, 80));
  expect_formula<128>(sized(96, 96));
  expect_formula<128>(sized(128, 128));
  expect_formula<128>(sized(128, 64));
  expect_formula<256>(sized(192, 128));
  expect_formula<256>(sized(256, 256));
  PagedCase several = sized(192, 128);  // several tiles, one after the other in a block
  several.heads = several.kv_heads = 4;
  expect_formula<256>(several);
}

TEST_F(DeviceTiles, query_heads_that_share_a_key_head) {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, std::pair{6, 2}, std::pair{14, 2}, std::pair{40, 1}}) {
    SCOPED_TRACE(std::to_string(heads) + " heads over " + std::to_string(kv_heads));
    expect_formula<64>({.heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = 16,
                        .value_dim = 16,
                        .sequences = {{.rows = 9, .context = 3}}});
  }
}

TEST_F(DeviceTiles, several_sequences_of_any_number_of_rows) {
  expect_formula<64>({.heads = 2,
                      .kv_heads = 2,
                      .head_dim = 32,
                      .value_dim = 16,
                      .block_tokens = 7,
                      .sequences = {{.rows = 1, .context = 129},
                                    {.rows = 1},
                                    {.rows = 37, .context = 27},
                                    {.rows = 2, .context = 63},
                                    {.rows = 1, .context = 63},
                                    {.rows = 1, .context = 64},
                                    {.rows = 66, .context = 1},
                                    {.rows = 3, .context = 190}}});
}

TEST_F(DeviceTiles, rows_of_sequences_with_few_rows_are_skipped) {
  const PagedCase of = in_bfloat16({.head_dim = 16,
                                    .value_dim = 16,
                                    .sequences = {{.rows = 2}, {.rows = 3, .context = 20}, {.rows = 1}, {.rows = 70}}});
  PagedSequences sequences(of);
  std::vector<float> expected = sequences.by_formula();
  std::fill(expected.begin(), expected.begin() + 2 * 16, NAN);
  std::fill(expected.begin() + 5 * 16, expected.begin() + 6 * 16, NAN);
  expect_near(by_tiles<64, 1>(of, sequences, 2), expected, kError);
  expect_near(by_tiles<64, 2>(of, sequences, 2), expected, kError);
}

TEST_F(DeviceTiles, windows_chunks_and_capped_scores) {
  const std::vector<PagedCase::Sequence> sequences = {{.rows = 40, .context = 120}, {.rows = 5}, {.rows = 70}};
  expect_formula<64>({.head_dim = 16, .value_dim = 16, .sequences = sequences, .chunk = 50});
  expect_formula<64>({.head_dim = 16, .value_dim = 16, .sequences = sequences, .window = 30, .chunk = 64});
  expect_formula<64>({.head_dim = 16, .value_dim = 16, .sequences = sequences, .window = 5});
  expect_formula<64>({.head_dim = 16, .value_dim = 16, .sequences = sequences, .window = 64});
  expect_formula<64>({.head_dim = 16, .value_dim = 16, .sequences = sequences, .softcap = 1.5F});
  expect_formula<256>({.head_dim = 144, .value_dim = 16, .sequences = {{.rows = 50}}, .window = 33, .softcap = 3.0F});
}

TEST_F(DeviceTiles, keys_before_all_windows_are_not_read) {
  const PagedCase of = in_bfloat16({.heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 16,
                                    .value_dim = 16,
                                    .sequences = {{.rows = 9, .context = 100}},
                                    .window = 20});
  PagedSequences sequences(of);
  sequences.spoil_value(80, 0);
  expect_near(by_tiles<64, 2>(of, sequences), sequences.by_formula(), kError);
}

TEST_F(DeviceTiles, a_rows_bits_do_not_depend_on_the_other_sequences) {
  const PagedCase::Sequence one{.rows = 41, .context = 230, .seed = 1};
  PagedCase of =
      in_bfloat16({.heads = 2, .kv_heads = 1, .head_dim = 32, .value_dim = 32, .sequences = {one}, .window = 150});
  PagedSequences alone(of);
  const std::vector<float> expected = by_tiles<64, 2>(of, alone);
  of.sequences = {{.rows = 11, .seed = 2}, one, {.rows = 30, .context = 70, .seed = 3}};
  PagedSequences beside(of);
  const std::vector<float> all = by_tiles<64, 2>(of, beside);
  const auto first = all.begin() + 11 * 2 * 32;
  EXPECT_EQ(std::vector<float>(first, first + static_cast<std::ptrdiff_t>(expected.size())), expected);
}

TEST_F(DeviceTiles, a_nan_in_a_key_gives_nan_for_the_rows_that_see_it) {
  const PagedCase of = in_bfloat16({.heads = 2,
                                    .kv_heads = 2,
                                    .head_dim = 16,
                                    .value_dim = 16,
                                    .sequences = {{.rows = 70}, {.rows = 10}},
                                    .window = 30});
  PagedSequences sequences(of);
  sequences.spoil_key(20, 1);
  const std::vector<float> output = by_tiles<64, 2>(of, sequences);
  for (std::size_t i = 0; i < output.size(); ++i) {
    const std::size_t row = i / 32, head = i / 16 % 2;
    ASSERT_EQ(std::isnan(output[i]), head == 1 && row >= 20 && row < 50) << "row " << row << " of head " << head;
  }
}

class DeviceTilesEngines : public accord::testing::OnAnyDevice<> {
 protected:
  template <int kMaxDim, int kHigh>
  static void expect_formula(PagedCase of) {
    SCOPED_TRACE(std::to_string(of.head_dim) + " of " + std::to_string(kMaxDim));
    of.cache = of.queries = DType::kBFloat16;
    PagedSequences sequences(of);
    const std::vector<float> found = sequences.by({runtime(), kGpu}, [&](PagedCall call) {
      using Tiles = PagedTiles<kMaxDim, kHigh>;
      call.rows_of = RowsOf::kLongSequences;
      call.few_rows = 0;
      const device::Grid grid{3, Tiles::kThreads, Tiles::Attend::shared_bytes()};
      const Status status = device::launch(runtime(), Tiles{call}, grid, kGpu, {});
      ASSERT_TRUE(status.ok()) << status.to_string();
    });
    expect_near(found, sequences.by_formula(), kError);
  }
};

TEST_P(DeviceTilesEngines, its_kernels_are_launched_and_match_the_formula) {
  const std::vector<PagedCase::Sequence> sequences = {{.rows = 70}, {.rows = 9, .context = 50}, {.rows = 1}};
  const PagedCase grouped{.heads = 6, .kv_heads = 2, .head_dim = 64, .value_dim = 32, .sequences = sequences};
  expect_formula<64, 1>(grouped);
  expect_formula<64, 2>(grouped);
  expect_formula<64, 2>({.head_dim = 16, .value_dim = 16, .sequences = sequences, .window = 33, .softcap = 3.0F});
  const PagedCase of_128{.heads = 2, .kv_heads = 1, .head_dim = 128, .value_dim = 128, .sequences = sequences};
  expect_formula<128, 1>(of_128);
  expect_formula<128, 2>(of_128);
  expect_formula<256, 1>({.head_dim = 192, .value_dim = 128, .sequences = sequences, .window = 20});
}

TEST_P(DeviceTilesEngines, an_engine_reads_prompts_as_the_cpu_does_with_the_kernel_for_its_heads) {
  constexpr DType kBFloat16 = DType::kBFloat16;
  struct Expected {
    OneAttention attention;
    std::string kernel;
  };
  for (const Expected& expected : {
           Expected{
               {.heads = 2, .kv_heads = 1, .head_dim = 16, .value_dim = 32, .cache = kBFloat16, .dtype = kBFloat16},
               "engine_paged_low_tiles_64"},
           Expected{
               {.heads = 8, .kv_heads = 2, .head_dim = 16, .value_dim = 32, .cache = kBFloat16, .dtype = kBFloat16},
               "engine_paged_tiles_64"},
           Expected{{.heads = 1,
           .kv_heads = 1,
           .head_dim = 80,
           .value_dim = 16,
           .window = 100,
           .cache = kBFloat16,
           .dtype = kBFloat16},
                    "engine_paged_low_tiles_128"},
           Expected{
               {.heads = 1, .kv_heads = 1, .head_dim = 144, .value_dim = 16, .cache = kBFloat16, .dtype = kBFloat16},
               "engine_paged_low_tiles_256"},
           Expected{
               {.heads = 8, .kv_heads = 2, .head_dim = 80, .value_dim = 16, .cache = kBFloat16, .dtype = kBFloat16},
               "engine_paged_tiles_128"},
           Expected{{.head_dim = 16, .value_dim = 16, .cache = kBFloat16}, "engine_paged_attention"},
           Expected{{.head_dim = 16, .value_dim = 24, .cache = kBFloat16, .dtype = kBFloat16},
                    "engine_paged_attention"},
           Expected{{.head_dim = 16, .value_dim = 16, .dtype = kBFloat16}, "engine_paged_attention"},
           Expected{{.head_dim = 16, .value_dim = 16, .cache = DType::kInt8, .dtype = kBFloat16},
                    "engine_paged_attention"},
       }) {
    SCOPED_TRACE(expected.kernel);
    const std::vector<float> cpu = expected.attention.run_on({});
    const int before = HostRuntime::instance().launches(expected.kernel);
    expect_near(expected.attention.run_on(kGpu), cpu, kError);
    if (!counts()) continue;
    EXPECT_EQ(HostRuntime::instance().launches(expected.kernel) - before, 1);  // the steps after the prompt decode
  }
}

TEST_P(DeviceTilesEngines, runs_without_sequences_keep_keys_and_values_in_the_dtype_of_a_bfloat16_model) {
  constexpr DType kBFloat16 = DType::kBFloat16;
  const auto numbers = [](std::int64_t heads) {
    return HostTensor(kBFloat16, {1, heads, 70, 16}, some_numbers(static_cast<std::size_t>(heads * 70 * 16)));
  };
  const OneAttention attention{.heads = 2, .kv_heads = 1, .head_dim = 16, .value_dim = 16, .dtype = kBFloat16};
  const int before = HostRuntime::instance().launches("engine_paged_low_tiles_64");
  expect_same(attention.parts(), {numbers(2), numbers(1), numbers(1)}, kError);
  EXPECT_TRUE(!counts() || HostRuntime::instance().launches("engine_paged_low_tiles_64") > before);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceTilesEngines, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceTilesEngines, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
