// Attention of single rows over the paged cache: the kernel by itself, in blocks of several sizes, compared with the
// formula; and in an engine, compared with the CPU.
#include <cmath>
#include <cstring>

#include "engine/gpu/cache.hpp"
#include "engine/gpu/kernels/decoding_kernel.hpp"
#include "engine/gpu/kernels/heads_kernel.hpp"
#include "kernels/attention/paged_cache.hpp"
#include "unit/engine/gpu/one_attention.hpp"
#include "unit/engine/gpu/paged_sequences.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::HostRuntime;
using accord::testing::kGpu;
using accord::testing::OneAttention;
using accord::testing::PagedCase;
using accord::testing::PagedSequences;
using accord::testing::run_blocks;
using accord::testing::single_rows;
using accord::testing::some_numbers;

template <DType kDType, int kQueries>
std::vector<float> by_decoding(const PagedCase& of, PagedSequences& sequences) {
  return sequences.by([&](const PagedCall& call) {
    const DecodingAttention<kDType, kQueries> kernel{call};
    const auto bytes = kernel.shared_bytes(of.head_dim, of.value_dim, of.splits, of.size.threads, of.size.lanes);
    run_blocks(kernel, 3, of.size, bytes);
  });
}

class DeviceDecoding : public accord::testing::DeviceEngines {
 protected:
  template <DType kDType>
  static void expect_formula_of(PagedCase of) {
    of.cache = kDType;
    PagedSequences sequences(of);
    const std::vector<float> expected = sequences.by_formula();
    expect_near(by_decoding<kDType, 1>(of, sequences), expected, 2e-5F);
    expect_near(by_decoding<kDType, 4>(of, sequences), expected, 2e-5F);
    if constexpr (kDType == DType::kFloat32) expect_near(by_decoding<kDType, 8>(of, sequences), expected, 2e-5F);
  }
  static void expect_formula(const std::vector<std::int64_t>& tokens, const PagedCase& of) {
    expect_formula_of<DType::kFloat32>(single_rows(tokens, of));
    expect_formula_of<DType::kBFloat16>(single_rows(tokens, of));
    expect_formula_of<DType::kInt8>(single_rows(tokens, of));
  }
};

TEST_F(DeviceDecoding, blocks_of_any_number_of_threads_and_lanes_match_the_formula) {
  for (const BlockSize size : {BlockSize{1, 1}, BlockSize{4, 2}, BlockSize{6, 3}, BlockSize{8, 8}, BlockSize{16, 8}}) {
    SCOPED_TRACE(std::to_string(size.threads) + " threads in warps of " + std::to_string(size.lanes));
    expect_formula({37, 0}, {.heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 24, .size = size});
  }
}

TEST_F(DeviceDecoding, query_heads_that_share_a_key_head) {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, std::pair{3, 1}, std::pair{10, 2}, std::pair{12, 1}}) {
    SCOPED_TRACE(std::to_string(heads) + " heads over " + std::to_string(kv_heads));
    expect_formula({5, 20}, {.heads = heads, .kv_heads = kv_heads, .size = {4, 2}});
  }
}

TEST_F(DeviceDecoding, contexts_that_end_anywhere_in_a_block_of_the_cache) {
  for (const std::int32_t token : {0, 1, 6, 7, 8, 13, 14, 30})
    expect_formula({token, 3}, {.heads = 2, .block_tokens = 7, .size = {4, 4}});
}

TEST_F(DeviceDecoding, long_contexts_in_parts_together_with_short_ones) {
  for (const int splits : {2, 3, 8})
    expect_formula({611, 255, 256, 0}, {.heads = 2, .value_dim = 16, .splits = splits, .size = {4, 2}});
}

TEST_F(DeviceDecoding, the_last_block_combines_all_parts_in_whatever_order_they_finish) {
  const PagedCase of = single_rows({611, 700}, {.heads = 4, .kv_heads = 2, .splits = 3, .size = {4, 2}});
  PagedSequences sequences(of);
  const std::vector<float> expected = sequences.by_formula();
  const auto expect_formula_by = [&](const auto& run) {
    expect_near(sequences.by([&](const PagedCall& call) {
      const DecodingAttention<DType::kFloat32, 4> kernel{call};
      ASSERT_EQ(kernel.works(), 12);
      run(kernel, 12, of.size, kernel.shared_bytes(of.head_dim, of.value_dim, of.splits, 4, 2));
    }),
                expected, 2e-5F);
  };
  expect_formula_by([](const auto&... arguments) { accord::testing::run_blocks_backward(arguments...); });
  for (int i = 0; i < 20; ++i)
    expect_formula_by([](const auto&... arguments) { accord::testing::run_blocks_together(arguments...); });
}

TEST_F(DeviceDecoding, windows_chunks_and_capped_scores) {
  expect_formula({40, 3, 4}, {.heads = 2, .size = {4, 2}, .chunk = 5});
  expect_formula({500, 20}, {.heads = 2, .splits = 4, .size = {4, 2}, .chunk = 300});
  expect_formula({40, 3, 4}, {.heads = 2, .window = 5, .size = {4, 2}});
  expect_formula({500, 20}, {.heads = 2, .window = 300, .softcap = 1.5F, .splits = 4, .size = {4, 2}});
}

template <std::int64_t kDim>
void expect_codes_of_the_cpu() {
  constexpr std::int64_t kTokens = 16, kHeads = 2, kRows = 9;
  std::vector<float> keys = some_numbers(kRows * kHeads * kDim, 1), values = some_numbers(kRows * kHeads * kDim, 2);
  std::fill_n(keys.begin(), kDim, 0.0F);
  keys[2 * kDim + 3] = NAN;
  keys[3 * kDim + 12] = -INFINITY;
  std::fill_n(keys.begin() + 4 * kDim, kDim, -2.6e-43F);
  keys[5 * kDim] = 3.4e38F;
  for (std::int64_t i = 0; i < kDim; ++i) keys[static_cast<std::size_t>(6 * kDim + i)] = static_cast<float>(i) + 0.5F;
  keys[6 * kDim + 12] = 127.0F;  // the others are halfway between codes

  kernels::PagedCache cpu{.dtype = DType::kInt8,
                          .blocks = 1,
                          .block_tokens = kTokens,
                          .kv_heads = kHeads,
                          .head_dim = kDim,
                          .value_dim = kDim};
  std::vector<float> cpu_keys(key_bytes(cpu) / sizeof(float)), cpu_values(value_bytes(cpu) / sizeof(float));
  cpu.keys = reinterpret_cast<std::byte*>(cpu_keys.data());
  cpu.values = reinterpret_cast<std::byte*>(cpu_values.data());
  const std::int32_t block = 0;
  append_to_cache(cpu, {kRows, 0, {&block, 1}}, {keys.data(), kHeads * kDim, kDim},
                  {values.data(), kHeads * kDim, kDim}, 0, kHeads);

  for (const BlockSize size : {BlockSize{4, 2}, BlockSize{32, 16}}) {
    std::vector<std::int8_t> key_codes(kTokens * kHeads * kDim), value_codes = key_codes;
    std::vector<float> key_scales(kTokens * kHeads), value_scales = key_scales;
    std::vector<RowPlace> places;
    for (std::int32_t row = 0; row < kRows; ++row) places.push_back({row, 0, kRows});
    const DeviceCacheLayer layer{key_codes.data(),  value_codes.data(), DType::kInt8, kTokens, kHeads, kDim, kDim,
                                 key_scales.data(), value_scales.data()};
    const HeadRows key_rows{keys.data(), DType::kFloat32, kHeads * kDim, kDim};
    const HeadRows value_rows{values.data(), DType::kFloat32, kHeads * kDim, kDim};
    HeadsCall call;
    call.rows = kRows;
    call.head_dim = kDim;
    call.keys = key_rows;
    call.values = value_rows;
    call.cache = layer;
    call.batch = {places.data(), &block};
    run_blocks(RotateAndAppend<DType::kFloat32>{call}, 2, size, 0);
    for (std::int64_t row = 0; row < kRows * kHeads; ++row) {
      const std::int64_t head = row % kHeads, token = row / kHeads, at = head * kTokens + token;
      SCOPED_TRACE("token " + std::to_string(token) + " of head " + std::to_string(head));
      const std::byte* const key_piece = cpu.keys + head * cpu.piece_bytes(kDim);
      const std::byte* const value_piece = cpu.values + head * cpu.piece_bytes(cpu.value_width());
      for (std::int64_t d = 0; d < kDim; ++d) {
        EXPECT_EQ(key_codes[static_cast<std::size_t>(at * kDim + d)],
                  static_cast<std::int8_t>(key_piece[d * kernels::kTokenGroup + token]));
        EXPECT_EQ(value_codes[static_cast<std::size_t>(at * kDim + d)],
                  static_cast<std::int8_t>(value_piece[token * cpu.value_width() + d]));
      }
      const auto expect_same_scale = [&](const std::vector<float>& scales, const std::byte* all) {
        float its;
        std::memcpy(&its, all + token * static_cast<std::int64_t>(sizeof(float)), sizeof(float));
        const float found = scales[static_cast<std::size_t>(at)];
        EXPECT_TRUE(std::isnan(its) ? std::isnan(found) : found == its) << found << " and not " << its;
      };
      expect_same_scale(key_scales, key_piece + kTokens * kDim);
      expect_same_scale(value_scales, value_piece + kTokens * cpu.value_width());
    }
  }
}

TEST_F(DeviceDecoding, a_cache_of_int8_holds_the_codes_and_scales_of_the_cpu) {
  expect_codes_of_the_cpu<13>();
  expect_codes_of_the_cpu<16>();  // in words
}

TEST_F(DeviceDecoding, a_copied_block_of_int8_has_its_codes_and_scales) {
  constexpr std::int64_t kTokens = 16, kHeads = 2, kKeyDim = 8, kValueDim = 24;
  HostRuntime& runtime = HostRuntime::instance();
  const CachedLayer layer{0, kHeads, kKeyDim, kValueDim};
  const Result<DeviceCache> cache =
      DeviceCache::create({&layer, 1}, {.blocks = 3, .block_tokens = kTokens, .dtype = DType::kInt8}, runtime, kGpu);
  ASSERT_TRUE(cache.ok()) << cache.status().to_string();
  const DeviceCacheLayer& made = cache->layer(0);
  struct Part {
    void* memory;
    std::size_t bytes;  // per block
  };
  const Part parts[] = {{made.keys, kTokens * kHeads * kKeyDim},
                        {made.values, kTokens * kHeads * kValueDim},
                        {made.key_scales, kTokens * kHeads * sizeof(float)},
                        {made.value_scales, kTokens * kHeads * sizeof(float)}};
  for (const Part& part : parts)
    for (std::size_t i = 0; i < part.bytes * 3; ++i)
      static_cast<unsigned char*>(part.memory)[i] = static_cast<unsigned char>(i / part.bytes * 100 + i % 97);
  ASSERT_TRUE(cache->copy_block(1, 2, runtime, kGpu, {}).ok());
  ASSERT_TRUE(runtime.synchronize(kGpu, {}).ok());
  for (const Part& part : parts)
    for (std::size_t i = 0; i < part.bytes * 3; ++i)
      ASSERT_EQ(static_cast<unsigned char*>(part.memory)[i],
                static_cast<unsigned char>((i < part.bytes ? 0 : 100) + (i < 2 * part.bytes ? i : i - part.bytes) % 97))
          << i;
}

TEST_F(DeviceDecoding, a_nan_in_a_key_gives_nan_for_the_heads_that_see_it) {
  const PagedCase of = single_rows({300}, {.heads = 2, .kv_heads = 2, .splits = 2, .size = {4, 2}});
  PagedSequences sequences(of);
  sequences.spoil_key(299, 1);
  const std::vector<float> output = by_decoding<DType::kFloat32, 1>(of, sequences);
  for (std::size_t i = 0; i < output.size(); ++i) EXPECT_EQ(std::isnan(output[i]), i >= output.size() / 2) << i;
}

TEST_F(DeviceDecoding, only_rows_of_sequences_with_few_rows_are_computed) {
  for (const int splits : {1, 2}) {
    const PagedCase of{.heads = 2,
                       .sequences = {{.rows = 2, .context = 300}, {.rows = 3, .context = 20}, {.rows = 1}},
                       .splits = splits,
                       .size = {4, 2}};
    PagedSequences sequences(of);
    std::vector<float> expected = sequences.by_formula();
    std::fill(expected.begin() + 2 * 16, expected.begin() + 5 * 16, NAN);
    const std::vector<float> output = sequences.by([&](PagedCall call) {
      call.few_rows = 2;
      const DecodingAttention<DType::kFloat32, 1> kernel{call};
      const auto bytes = kernel.shared_bytes(of.head_dim, of.value_dim, splits, of.size.threads, of.size.lanes);
      run_blocks(kernel, 3, of.size, bytes);
    });
    expect_near(output, expected, 2e-5F);
  }
}

class DeviceDecodingEngines : public accord::testing::OnAnyDevice<> {
 protected:
  template <DType kDType, int kQueries>
  static void expect_formula(PagedCase of) {
    of.cache = kDType;
    PagedSequences sequences(of);
    const auto launch = [](const auto& kernel, std::size_t shared_bytes) {
      const Status status = device::launch(runtime(), kernel, {3, kernel.kThreads, shared_bytes}, kGpu, {});
      ASSERT_TRUE(status.ok()) << status.to_string();
    };
    const std::vector<float> found = sequences.by({runtime(), kGpu}, [&](const PagedCall& call) {
      const DecodingAttention<kDType, kQueries> kernel{call};
      launch(kernel, kernel.shared_bytes(of.head_dim, of.value_dim, of.splits));
    });
    expect_near(found, sequences.by_formula(), 2e-5F);
  }
};

TEST_P(DeviceDecodingEngines, its_kernels_are_launched_and_match_the_formula) {
  for (const PagedCase& each : {
           PagedCase{.heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 24},
           PagedCase{.heads = 10, .kv_heads = 2, .head_dim = 16, .value_dim = 16, .window = 300, .softcap = 1.5F},
           PagedCase{.heads = 2, .head_dim = 128, .value_dim = 128, .splits = 3},
       }) {
    const PagedCase of = single_rows({611, 255, 20, 0}, each);
    SCOPED_TRACE(std::to_string(of.heads) + " heads");
    expect_formula<DType::kFloat32, 1>(of);
    expect_formula<DType::kFloat32, 4>(of);
    expect_formula<DType::kFloat32, 8>(of);
    expect_formula<DType::kBFloat16, 1>(of);
    expect_formula<DType::kBFloat16, 4>(of);
    expect_formula<DType::kInt8, 4>(of);
  }
}

TEST_P(DeviceDecodingEngines, many_sequences_decode_together_and_a_graph_with_as_many_rows_reads_prompts) {
  constexpr DType kBFloat16 = DType::kBFloat16;
  OneAttention::Steps steps;
  for (std::int64_t step = 0; step < 3; ++step) {  // the last one runs as a graph
    steps.emplace_back();
    for (std::size_t i = 0; i < 70; ++i) steps.back().push_back({1, step, i});
  }
  steps.push_back({{70, 0, 0}});
  steps.push_back({{1, 3, 1}, {30, 0, 2}, {2, 3, 3}, {36, 0, 4}, {1, 70, 0}});
  struct Expected {
    OneAttention attention;
    std::string few, many;
    float error = 2e-5F;
  };
  for (const Expected& expected : {
           Expected{{}, "engine_decode_4_heads_float32", "engine_paged_attention"},
           Expected{
               {.heads = 2, .kv_heads = 1, .head_dim = 16, .value_dim = 16, .cache = kBFloat16, .dtype = kBFloat16},
               "engine_decode_4_heads_bfloat16",
               "engine_paged_low_tiles_64",
               0.012F},
       }) {
    SCOPED_TRACE(expected.few);
    const std::vector<float> cpu = expected.attention.run_on({}, steps);
    const HostRuntime& runtime = HostRuntime::instance();
    const int few = runtime.launches(expected.few), many = runtime.launches(expected.many);
    expect_near(expected.attention.run_on(kGpu, steps), cpu, expected.error);
    if (!counts()) continue;
    // Decoding twice, directly and captured, and reading prompts need one kernel each. The last step needs both.
    EXPECT_EQ(runtime.launches(expected.few) - few, 3);
    EXPECT_EQ(runtime.launches(expected.many) - many, 2);
  }
}

TEST_P(DeviceDecodingEngines, sinks_and_biases_by_distance_match_the_cpu) {
  constexpr DType kBFloat16 = DType::kBFloat16;
  for (const OneAttention& attention :
       {OneAttention{.window = 100, .has_biases = true},
        OneAttention{.head_dim = 64, .value_dim = 64, .cache = kBFloat16, .dtype = kBFloat16, .has_biases = true}}) {
    const std::vector<float> cpu = attention.run_on({});
    OneAttention without = attention;
    without.has_biases = false;
    EXPECT_NE(without.run_on({}), cpu);
    expect_near(attention.run_on(kGpu), cpu, attention.dtype == kBFloat16 ? 0.012F : 2e-5F);
  }
}

TEST_P(DeviceDecodingEngines, a_program_keeps_a_graph_for_decoding_and_one_for_prompts) {
  constexpr std::size_t kRows = 70;
  const auto decode = [](std::int64_t context) {
    std::vector<OneAttention::Rows> rows;
    for (std::size_t i = 0; i < kRows; ++i) rows.push_back({1, context, i});
    return rows;
  };
  const std::vector<OneAttention::Rows> prompt = {{kRows, 0, 0}};
  const OneAttention attention{.heads = 2, .kv_heads = 1};
  const OneAttention::Steps steps = {decode(0), decode(1), decode(2), prompt, prompt, prompt, decode(3), prompt};
  const std::vector<float> cpu = attention.run_on({}, steps);
  const HostRuntime& runtime = HostRuntime::instance();
  const std::string few = "engine_decode_4_heads_float32", many = "engine_paged_attention";
  const int decodes = runtime.launches(few), prompts = runtime.launches(many);
  expect_near(attention.run_on(kGpu, steps), cpu, 2e-5F);
  if (!counts()) return;
  // Each kind runs directly once and is captured once.
  EXPECT_EQ(runtime.launches(few) - decodes, 2);
  EXPECT_EQ(runtime.launches(many) - prompts, 2);
}

TEST_P(DeviceDecodingEngines, an_engine_decodes_as_the_cpu_does_with_the_kernel_for_its_heads) {
  struct Expected {
    OneAttention attention;
    std::string kernel;
  };
  for (const Expected& expected : {
           Expected{{}, "engine_decode_4_heads_float32"},
           Expected{{.cache = DType::kBFloat16}, "engine_decode_4_heads_bfloat16"},
           Expected{{.cache = DType::kInt8}, "engine_decode_4_heads_int8"},
           Expected{{.heads = 2, .cache = DType::kInt8}, "engine_decode_1_head_int8"},
           Expected{{.heads = 5, .kv_heads = 1, .window = 40, .cache = DType::kInt8}, "engine_decode_4_heads_int8"},
           Expected{{.head_dim = 5, .value_dim = 7, .cache = DType::kInt8}, "engine_paged_attention"},
           Expected{{.heads = 2}, "engine_decode_1_head_float32"},
           Expected{{.heads = 5, .kv_heads = 1, .window = 40}, "engine_decode_8_heads_float32"},
           Expected{{.head_dim = 5, .value_dim = 7}, "engine_paged_attention"},
           Expected{{.head_dim = 12, .value_dim = 4, .cache = DType::kBFloat16}, "engine_paged_attention"},
       }) {
    SCOPED_TRACE(expected.kernel);
    const std::vector<float> cpu = expected.attention.run_on({});
    const int before = HostRuntime::instance().launches(expected.kernel);
    expect_near(expected.attention.run_on(kGpu), cpu, 2e-5F);
    if (!counts()) continue;
    // The short prompt goes to this kernel, the long one to the tiles. Of three equal steps the last runs as a graph,
    // because the second was captured.
    EXPECT_EQ(HostRuntime::instance().launches(expected.kernel) - before,
              expected.kernel == "engine_paged_attention" ? 4 : 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceDecodingEngines, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceDecodingEngines, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
