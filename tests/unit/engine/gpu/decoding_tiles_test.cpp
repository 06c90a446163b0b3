// Attention of a few rows on tensor cores: the kernel by itself, in blocks of several sizes, compared with the formula;
// and in an engine, compared with the CPU.
#include "engine/gpu/kernels/decoding_tiles.hpp"

#include <cmath>
#include <cstring>
#include <utility>

#include "unit/engine/gpu/one_attention.hpp"
#include "unit/engine/gpu/paged_sequences.hpp"
#include "unit/engine/gpu/row_arrays.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::HostRuntime;
using accord::testing::kGpu;
using accord::testing::OneAttention;
using accord::testing::PagedCase;
using accord::testing::PagedSequences;
using accord::testing::RowArray;
using accord::testing::run_blocks;
using accord::testing::single_rows;
using accord::testing::some_numbers;

// Parts of a softmax, and the results, are rounded to bfloat16: an error of 2^-9 each. Values are below 2, or below 4.5
// in int8.
constexpr float error_of(DType cache) { return cache == DType::kInt8 ? 0.027F : 0.012F; }

template <DType kCache, int kMaxDim>
std::vector<float> by_decoding_tiles(const PagedCase& of, PagedSequences& sequences, int few_rows = 16) {
  return sequences.by([&](PagedCall call) {
    using Tiles = DecodingTiles<kCache, kMaxDim>;
    call.few_rows = few_rows;
    run_blocks(Tiles{call}, 3, of.size, Tiles::shared_bytes(of.splits));
  });
}

PagedCase with_dtypes(PagedCase of, DType cache) {
  of.cache = cache;
  of.queries = DType::kBFloat16;
  if (of.size.lanes == 1) of.size = {64, 32};
  return of;
}

class DeviceDecodingTiles : public accord::testing::DeviceEngines {
 protected:
  template <DType kCache, int kMaxDim>
  static void expect_formula_of(const PagedCase& given) {
    const PagedCase of = with_dtypes(given, kCache);
    PagedSequences sequences(of);
    expect_near(by_decoding_tiles<kCache, kMaxDim>(of, sequences), sequences.by_formula(), error_of(kCache));
  }
  template <int kMaxDim>
  static void expect_formula(const PagedCase& of) {
    SCOPED_TRACE(std::to_string(of.head_dim) + " and " + std::to_string(of.value_dim));
    expect_formula_of<DType::kBFloat16, kMaxDim>(of);
    expect_formula_of<DType::kInt8, kMaxDim>(of);
  }
};

TEST_F(DeviceDecodingTiles, blocks_of_any_number_of_warps_match_the_formula) {
  for (const int warps : {1, 2, 4}) {
    SCOPED_TRACE(warps);
    expect_formula<64>(single_rows(
        {611, 37, 0}, {.heads = 8, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .size = {warps * 32, 32}}));
  }
}

TEST_F(DeviceDecodingTiles, heads_of_all_sizes) {
  const auto sized = [](std::int64_t head_dim, std::int64_t value_dim) {
    return single_rows({200}, {.heads = 4, .head_dim = head_dim, .value_dim = value_dim});
  };
  expect_formula<64>(sized(16, 16));
  expect_formula<64>(sized(48, 64));
  expect_formula<64>(sized(64, 32));
  expect_formula<96>(sized(80, 80));
  expect_formula<96>(sized(96, 96));
  expect_formula<128>(sized(112, 16));
  expect_formula<128>(sized(128, 128));
  expect_formula<256>(sized(192, 128));
  expect_formula<256>(sized(240, 256));
  expect_formula<256>(sized(256, 256));
}

TEST_F(DeviceDecodingTiles, query_heads_that_share_a_key_head) {
  for (const auto& [heads, kv_heads] :
       {std::pair{4, 1}, std::pair{10, 2}, std::pair{7, 1}, std::pair{16, 1}, std::pair{20, 1}, std::pair{71, 1}}) {
    SCOPED_TRACE(std::to_string(heads) + " heads over " + std::to_string(kv_heads));
    expect_formula<64>(single_rows({20, 65}, {.heads = heads, .kv_heads = kv_heads, .head_dim = 16, .value_dim = 16}));
  }
}

TEST_F(DeviceDecodingTiles, contexts_that_end_anywhere_in_a_group_or_in_a_block_of_the_cache) {
  for (const std::int32_t token : {0, 1, 6, 7, 14, 15, 16, 30, 31, 32, 63, 64, 127})
    expect_formula<64>(single_rows(
        {token, 3}, {.heads = 4, .head_dim = 16, .value_dim = 16, .block_tokens = token % 2 == 0 ? 7 : 16}));
}

TEST_F(DeviceDecodingTiles, long_contexts_in_parts_together_with_short_ones) {
  for (const int splits : {2, 3, 8})
    expect_formula<64>(single_rows({1100, 255, 256, 0},
                                   {.heads = 12, .kv_heads = 2, .head_dim = 32, .value_dim = 48, .splits = splits}));
}

TEST_F(DeviceDecodingTiles, windows_and_capped_scores) {
  const PagedCase of{.heads = 5, .head_dim = 32, .value_dim = 32};
  PagedCase narrow = of, wide = of;
  narrow.window = 5;
  wide.window = 300;
  wide.softcap = 1.5F;
  wide.splits = 4;
  expect_formula<64>(single_rows({40, 3, 4}, narrow));
  expect_formula<64>(single_rows({700, 20}, wide));
}

TEST_F(DeviceDecodingTiles, short_sequences_of_several_rows_beside_single_rows) {
  for (const int splits : {1, 3})
    expect_formula<64>({.heads = 4,
                        .head_dim = 16,
                        .value_dim = 32,
                        .sequences = {{.rows = 1, .context = 129},
                                      {.rows = 4},
                                      {.rows = 3, .context = 700},
                                      {.rows = 2, .context = 63},
                                      {.rows = 1}},
                        .window = splits == 1 ? 65 : 0,
                        .splits = splits});
}

TEST_F(DeviceDecodingTiles, short_sequences_with_more_rows_than_a_tile) {
  for (const int splits : {1, 4})
    for (const int heads : {5, 20})
      expect_formula<64>({.heads = heads,
                          .head_dim = 16,
                          .value_dim = 16,
                          .sequences = {{.rows = 7, .context = 600}, {.rows = 1, .context = 40}, {.rows = 16}},
                          .window = splits == 1 ? 33 : 0,
                          .splits = splits});
}

TEST_F(DeviceDecodingTiles, rows_of_sequences_with_many_rows_are_skipped) {
  const PagedCase of = with_dtypes({.heads = 4,
                                    .head_dim = 16,
                                    .value_dim = 16,
                                    .sequences = {{.rows = 2, .context = 300}, {.rows = 5, .context = 20}, {.rows = 1}},
                                    .splits = 2},
                                   DType::kBFloat16);
  PagedSequences sequences(of);
  std::vector<float> expected = sequences.by_formula();
  std::fill(expected.begin() + 2 * 64, expected.begin() + 7 * 64, NAN);
  expect_near(by_decoding_tiles<DType::kBFloat16, 64>(of, sequences, 4), expected, error_of(DType::kBFloat16));
}

TEST_F(DeviceDecodingTiles, the_last_block_combines_all_parts_in_whatever_order_they_finish) {
  const PagedCase of =
      with_dtypes(single_rows({611, 700}, {.heads = 8, .kv_heads = 2, .head_dim = 16, .value_dim = 16, .splits = 3}),
                  DType::kBFloat16);
  PagedSequences sequences(of);
  const std::vector<float> expected = by_decoding_tiles<DType::kBFloat16, 64>(of, sequences);
  expect_near(expected, sequences.by_formula(), error_of(DType::kBFloat16));
  const auto by = [&](const auto& run) {
    return sequences.by([&](const PagedCall& call) {
      using Tiles = DecodingTiles<DType::kBFloat16, 64>;
      const Tiles kernel{call};
      const std::int64_t works = kernel.works(2);
      EXPECT_EQ(works, 12);
      run(kernel, static_cast<int>(works), of.size, Tiles::shared_bytes(of.splits));
    });
  };
  EXPECT_EQ(by([](const auto&... arguments) { accord::testing::run_blocks_backward(arguments...); }), expected);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(by([](const auto&... arguments) { accord::testing::run_blocks_together(arguments...); }), expected);
}

TEST_F(DeviceDecodingTiles, keys_before_the_window_are_not_read) {
  const PagedCase of =
      with_dtypes(single_rows({100}, {.heads = 4, .head_dim = 16, .value_dim = 16, .window = 20}), DType::kBFloat16);
  PagedSequences sequences(of);
  sequences.spoil_value(80, 0);
  expect_near(by_decoding_tiles<DType::kBFloat16, 64>(of, sequences), sequences.by_formula(),
              error_of(DType::kBFloat16));
}

TEST_F(DeviceDecodingTiles, a_nan_in_a_key_gives_nan_for_the_heads_that_see_it) {
  const PagedCase of = with_dtypes(
      single_rows({700}, {.heads = 8, .kv_heads = 2, .head_dim = 16, .value_dim = 16, .splits = 3}), DType::kBFloat16);
  PagedSequences sequences(of);
  sequences.spoil_key(299, 1);
  const std::vector<float> output = by_decoding_tiles<DType::kBFloat16, 64>(of, sequences);
  for (std::size_t i = 0; i < output.size(); ++i) EXPECT_EQ(std::isnan(output[i]), i >= output.size() / 2) << i;
}

/// The work on the heads of single rows, and the cache's rows that it writes.
template <DType kCache>
class NewHeads {
 public:
  NewHeads(const PagedCase& of, bool rotates) : of_(of), rotates_(rotates) {}

  /// Returns the output, and then the bytes of the rows that were written to the cache. `in_one`: by one kernel.
  std::pair<std::vector<float>, std::vector<std::byte>> run(PagedSequences& sequences, bool in_one) {
    using Tiles = DecodingTiles<kCache, 64>;
    RowArray rotated(DType::kBFloat16, queries_.values().size());
    std::vector<std::byte> written;
    const auto run_on = [&](PagedCall call) {
      call.has_single_rows = true;
      call.few_rows = 1;
      const HeadsCall work = work_of(call, rotated);
      call.q = rotates_ ? work.rotated : rows_of(queries_, of_.heads, of_.head_dim);
      for_rows_written(call, [](std::byte* row, std::size_t bytes) { std::memset(row, 0x7E, bytes); });
      if (!in_one) run_blocks(RotateAndAppend<DType::kBFloat16>{work}, 2, of_.size, 0);
      run_blocks(Tiles{call, {in_one ? work : HeadsCall()}}, 3, of_.size, Tiles::shared_bytes(of_.splits));
      for_rows_written(call,
                       [&](std::byte* row, std::size_t bytes) { written.insert(written.end(), row, row + bytes); });
    };
    std::vector<float> output = sequences.by(run_on);
    return {std::move(output), std::move(written)};
  }

 private:
  HeadsCall work_of(const PagedCall& call, RowArray& rotated) {
    HeadsCall work;
    work.rows = rows_;
    work.head_dim = of_.head_dim;
    if (rotates_) {
      work.heads = of_.heads;
      work.x = rows_of(queries_, of_.heads, of_.head_dim);
      work.rotated = rows_of(rotated, of_.heads, of_.head_dim);
      work.cos = rows_of(cosines_, 1, of_.head_dim);
      work.sin = rows_of(sines_, 1, of_.head_dim);
    }
    work.keys = rows_of(keys_, of_.kv_heads, of_.head_dim);
    work.values = rows_of(values_, of_.kv_heads, of_.value_dim);
    work.cache = call.cache;
    work.batch = call.batch;
    return work;
  }
  static HeadRows rows_of(RowArray& rows, std::int64_t heads, std::int64_t dim) {
    return {rows.data(), DType::kBFloat16, heads * dim, dim};
  }
  template <typename Body>
  void for_rows_written(const PagedCall& call, const Body& body) const {
    const auto each = [&](void* all, std::int64_t row, std::size_t bytes) {
      body(static_cast<std::byte*>(all) + static_cast<std::size_t>(row) * bytes, bytes);
    };
    for (std::int64_t i = 0; i < rows_ * of_.kv_heads; ++i) {
      const RowPlace place = call.batch.rows[i / of_.kv_heads];
      const std::int64_t row = call.cache.row_of(call.batch.tables + place.table, i % of_.kv_heads, place.token);
      each(call.cache.keys, row, static_cast<std::size_t>(of_.head_dim) * size_of(kCache));
      each(call.cache.values, row, static_cast<std::size_t>(of_.value_dim) * size_of(kCache));
      if (kCache != DType::kInt8) continue;
      each(call.cache.key_scales, row, sizeof(float));
      each(call.cache.value_scales, row, sizeof(float));
    }
  }
  RowArray some(std::int64_t heads, std::int64_t dim, unsigned seed) const {
    return RowArray(DType::kBFloat16, some_numbers(static_cast<std::size_t>(rows_ * heads * dim), seed));
  }

  const PagedCase of_;
  const bool rotates_;
  const std::int64_t rows_ = static_cast<std::int64_t>(of_.sequences.size());
  RowArray queries_ = some(of_.heads, of_.head_dim, 1), keys_ = some(of_.kv_heads, of_.head_dim, 2),
           values_ = some(of_.kv_heads, of_.value_dim, 3), cosines_ = some(1, of_.head_dim, 4),
           sines_ = some(1, of_.head_dim, 5);
};

// Both kernels by themselves are compared with formulas.
template <DType kCache>
void expect_heads_in_the_same_kernel(const PagedCase& given) {
  const PagedCase of = with_dtypes(given, kCache);
  for (const bool rotates : {true, false}) {
    SCOPED_TRACE(rotates);
    PagedSequences sequences(of);
    NewHeads<kCache> heads(of, rotates);
    const auto expected = heads.run(sequences, false), found = heads.run(sequences, true);
    EXPECT_EQ(found.second, expected.second);
    EXPECT_EQ(found.first, expected.first);
    for (const float x : found.first) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_F(DeviceDecodingTiles, heads_of_single_rows_are_rotated_and_appended_by_the_same_kernel) {
  for (const int splits : {1, 3}) {
    for (const std::int64_t heads : {8, 32}) {  // 16 queries at most share a key head
      SCOPED_TRACE(std::to_string(splits) + " parts, " + std::to_string(heads) + " heads");
      const PagedCase of = single_rows(
          {611, 700, 0, 15, 256}, {.heads = heads, .kv_heads = 2, .head_dim = 64, .value_dim = 48, .splits = splits});
      expect_heads_in_the_same_kernel<DType::kBFloat16>(of);
      expect_heads_in_the_same_kernel<DType::kInt8>(of);
    }
  }
}

class DeviceDecodingTilesEngines : public accord::testing::OnAnyDevice<> {
 protected:
  template <DType kCache, int kMaxDim>
  static void expect_formula_of(const PagedCase& given) {
    SCOPED_TRACE(std::to_string(given.head_dim) + " of " + std::to_string(kMaxDim));
    const PagedCase of = with_dtypes(given, kCache);
    PagedSequences sequences(of);
    const std::vector<float> found = sequences.by({runtime(), kGpu}, [&](PagedCall call) {
      using Tiles = DecodingTiles<kCache, kMaxDim>;
      call.few_rows = 4;
      const std::size_t bytes = Tiles::shared_bytes(of.splits);
      const Status status = device::launch(runtime(), Tiles{call}, {5, Tiles::kThreads, bytes}, kGpu, {});
      ASSERT_TRUE(status.ok()) << status.to_string();
    });
    expect_near(found, sequences.by_formula(), error_of(kCache));
  }
  template <int kMaxDim>
  static void expect_formula(const PagedCase& of) {
    expect_formula_of<DType::kBFloat16, kMaxDim>(of);
    expect_formula_of<DType::kInt8, kMaxDim>(of);
  }
};

TEST_P(DeviceDecodingTilesEngines, its_kernels_are_launched_and_match_the_formula) {
  for (const int splits : {1, 3}) {
    const PagedCase of_64{.heads = 8,
                          .kv_heads = 2,
                          .head_dim = 64,
                          .value_dim = 64,
                          .sequences = {{.rows = 4, .context = 700}, {.rows = 1, .context = 300}, {.rows = 1}},
                          .splits = splits};
    expect_formula<64>(of_64);
    PagedCase of = single_rows({611, 255, 20, 0}, {.heads = 5, .splits = splits});
    of.head_dim = of.value_dim = 96;
    expect_formula<96>(of);
    of.head_dim = of.value_dim = 128;
    of.window = 300;
    expect_formula<128>(of);
    of.head_dim = 192;
    of.value_dim = 256;
    of.softcap = 1.5F;
    expect_formula<256>(of);
  }
}

TEST_P(DeviceDecodingTilesEngines, an_engine_decodes_with_one_kernel_for_all_heads_and_parts) {
  struct Expected {
    OneAttention attention;
    std::string kernel;
  };
  const auto with = [](DType cache, std::int64_t heads, std::int64_t head_dim, std::int64_t value_dim,
                       std::int64_t window = 0) {
    return OneAttention{heads, heads / 4, head_dim, value_dim, window, cache, DType::kBFloat16};
  };
  for (const Expected& expected : {
           Expected{with(DType::kBFloat16, 8, 16, 32), "engine_decoding_tiles_64_bfloat16"},
           Expected{with(DType::kInt8, 8, 32, 16), "engine_decoding_tiles_64_int8"},
           Expected{with(DType::kBFloat16, 4, 80, 16, 300), "engine_decoding_tiles_96_bfloat16"},
           Expected{with(DType::kInt8, 4, 96, 16), "engine_decoding_tiles_96_int8"},
           Expected{with(DType::kBFloat16, 4, 128, 16), "engine_decoding_tiles_128_bfloat16"},
           Expected{with(DType::kInt8, 4, 16, 112, 40), "engine_decoding_tiles_128_int8"},
           Expected{with(DType::kBFloat16, 4, 16, 144), "engine_decoding_tiles_256_bfloat16"},
           Expected{with(DType::kInt8, 4, 144, 16), "engine_decoding_tiles_256_int8"},
       }) {
    SCOPED_TRACE(expected.kernel);
    OneAttention::Steps steps = {{{290, 0, 0}, {21, 0, 1}}};
    for (std::int64_t step = 0; step < 3; ++step) steps.push_back({{1, 290 + step, 0}, {1, 21 + step, 1}});
    const std::vector<float> cpu = expected.attention.run_on({}, steps);
    const HostRuntime& runtime = HostRuntime::instance();
    const int before = runtime.launches(expected.kernel);
    const int others = runtime.launches("engine_paged_attention") + runtime.launches("engine_paged_low_tiles_64") +
                       runtime.launches("engine_paged_tiles_64");
    expect_near(expected.attention.run_on(kGpu, steps), cpu, error_of(expected.attention.cache));
    if (!counts()) continue;
    // The first step reads prompts and launches kernels of both kinds. Of three equal steps the last runs as a graph,
    // because the second was captured.
    EXPECT_EQ(runtime.launches(expected.kernel) - before, 3);
    EXPECT_LE(runtime.launches("engine_paged_attention") + runtime.launches("engine_paged_low_tiles_64") +
                  runtime.launches("engine_paged_tiles_64") - others,
              1);
  }
}

TEST_P(DeviceDecodingTilesEngines, rows_over_an_int8_cache_use_tensor_cores_up_to_four_tiles) {
  const OneAttention attention{8, 1, 16, 16, 0, DType::kInt8, DType::kBFloat16};
  const OneAttention::Steps steps = {{{8, 0, 0}}, {{5, 8, 0}, {1, 0, 1}}, {{8, 13, 0}}};
  const HostRuntime& runtime = HostRuntime::instance();
  const std::string tiles = "engine_decoding_tiles_64_int8", others = "engine_paged_attention";
  const int before = runtime.launches(tiles), before_others = runtime.launches(others);
  const std::vector<float> cpu = attention.run_on({}, steps);
  expect_near(attention.run_on(kGpu, steps), cpu, error_of(DType::kInt8));
  if (!counts()) return;
  EXPECT_EQ(runtime.launches(tiles) - before, 3);
  EXPECT_EQ(runtime.launches(others), before_others);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceDecodingTilesEngines, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceDecodingTilesEngines, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
