// Attention of single rows over the paged cache: the kernel by itself, for blocks of several sizes, against the formula; in an engine, against
// the one on the CPU.
#include <cmath>

#include "engine/device/decoding_kernel.hpp"
#include "unit/engine/one_attention.hpp"
#include "unit/engine/paged_sequences.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::HostRuntime;
using accord::testing::kGpu;
using accord::testing::OneAttention;
using accord::testing::PagedCase;
using accord::testing::PagedSequences;
using accord::testing::run_blocks;

/// Sequences of one row each, whose own tokens are `tokens`.
PagedCase rows_of(const std::vector<std::int64_t>& tokens, PagedCase of) {
  for (const std::int64_t token : tokens) of.sequences.push_back({1, token});
  return of;
}

template <DType kDType, int kQueries>
std::vector<float> by_kernel(const PagedCase& of, PagedSequences& sequences) {
  return sequences.by([&](const PagedCall& call) {
    const DecodingAttention<kDType, kQueries> kernel{call};
    run_blocks(kernel, 3, of.size, kernel.shared_bytes(of.head_dim, of.value_dim, of.size.threads, of.size.lanes));
    if (of.splits > 1) run_blocks(CombineSplits{call}, 2, of.size, 0);
  });
}

class DeviceDecoding : public accord::testing::DeviceEngines {
 protected:
  template <DType kDType>
  static void expect_formula_of(PagedCase of) {
    of.cache = kDType;
    PagedSequences sequences(of);
    const std::vector<float> expected = sequences.by_formula();
    expect_near(by_kernel<kDType, 1>(of, sequences), expected, 2e-5F);
    expect_near(by_kernel<kDType, 4>(of, sequences), expected, 2e-5F);
    expect_near(by_kernel<kDType, 8>(of, sequences), expected, 2e-5F);
  }
  static void expect_formula(const std::vector<std::int64_t>& tokens, const PagedCase& of) {
    expect_formula_of<DType::kFloat32>(rows_of(tokens, of));
    expect_formula_of<DType::kBFloat16>(rows_of(tokens, of));
  }
};

TEST_F(DeviceDecoding, blocks_of_any_number_of_threads_and_lanes_give_the_formula) {
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

TEST_F(DeviceDecoding, long_contexts_in_parts_beside_short_ones) {
  for (const int splits : {2, 3, 8})
    expect_formula({611, 255, 256, 0}, {.heads = 2, .value_dim = 16, .splits = splits, .size = {4, 2}});
}

TEST_F(DeviceDecoding, windows_and_capped_scores) {
  expect_formula({40, 3, 4}, {.heads = 2, .window = 5, .size = {4, 2}});
  expect_formula({500, 20}, {.heads = 2, .window = 300, .softcap = 1.5F, .splits = 4, .size = {4, 2}});
}

TEST_F(DeviceDecoding, one_nan_of_a_key_is_nan_for_the_heads_that_see_it) {
  const PagedCase of = rows_of({300}, {.heads = 2, .kv_heads = 2, .splits = 2, .size = {4, 2}});
  PagedSequences sequences(of);
  sequences.spoil_key(299, 1);
  const std::vector<float> output = by_kernel<DType::kFloat32, 1>(of, sequences);
  for (std::size_t i = 0; i < output.size(); ++i) EXPECT_EQ(std::isnan(output[i]), i >= output.size() / 2) << i;
}

TEST_F(DeviceDecoding, only_rows_of_sequences_with_few_rows_are_computed) {
  const PagedCase of{.heads = 2,
                     .sequences = {{.rows = 2, .context = 300}, {.rows = 3, .context = 20}, {.rows = 1}},
                     .splits = 2,
                     .size = {4, 2}};
  PagedSequences sequences(of);
  std::vector<float> expected = sequences.by_formula();
  std::fill(expected.begin() + 2 * 16, expected.begin() + 5 * 16, NAN);
  const std::vector<float> output = sequences.by([&](PagedCall call) {
    call.few_rows = 2;
    const DecodingAttention<DType::kFloat32, 1> kernel{call};
    run_blocks(kernel, 3, of.size, kernel.shared_bytes(of.head_dim, of.value_dim, of.size.threads, of.size.lanes));
    run_blocks(CombineSplits{call}, 2, of.size, 0);
  });
  expect_near(output, expected, 2e-5F);
}

TEST_F(DeviceDecoding, many_sequences_decode_together_and_a_graph_of_as_many_rows_reads_prompts) {
  constexpr DType kBFloat16 = DType::kBFloat16;
  OneAttention::Steps steps;
  for (std::int64_t step = 0; step < 3; ++step) {  // the last one is the graph's
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
               "engine_paged_tiles_64",
               0.012F},
       }) {
    SCOPED_TRACE(expected.few);
    const std::vector<float> cpu = expected.attention.run_on({}, steps);
    const HostRuntime& runtime = HostRuntime::instance();
    const int few = runtime.launches(expected.few), many = runtime.launches(expected.many);
    expect_near(expected.attention.run_on(kGpu, steps), cpu, expected.error);
    EXPECT_EQ(runtime.launches(expected.few) - few, 2);
    EXPECT_EQ(runtime.launches(expected.many) - many, 2);
  }
}

TEST_F(DeviceDecoding, an_engine_decodes_as_the_cpu_does_with_the_kernel_for_its_heads) {
  struct Expected {
    OneAttention attention;
    std::string kernel;
  };
  for (const Expected& expected : {
           Expected{{}, "engine_decode_4_heads_float32"},
           Expected{{.cache = DType::kBFloat16}, "engine_decode_4_heads_bfloat16"},
           Expected{{.heads = 2}, "engine_decode_1_head_float32"},
           Expected{{.heads = 5, .kv_heads = 1, .window = 40}, "engine_decode_8_heads_float32"},
           Expected{{.head_dim = 5, .value_dim = 7}, "engine_paged_attention"},
           Expected{{.head_dim = 12, .value_dim = 4, .cache = DType::kBFloat16}, "engine_paged_attention"},
       }) {
    SCOPED_TRACE(expected.kernel);
    const std::vector<float> cpu = expected.attention.run_on({});
    const int before = HostRuntime::instance().launches(expected.kernel);
    expect_near(expected.attention.run_on(kGpu), cpu, 2e-5F);
    // The short prompt is this kernel's, the long one the tiles'; of three steps alike the last is a graph's, as the second was captured.
    EXPECT_EQ(HostRuntime::instance().launches(expected.kernel) - before,
              expected.kernel == "engine_paged_attention" ? 4 : 3);
  }
}

}  // namespace
}  // namespace accord::engine
