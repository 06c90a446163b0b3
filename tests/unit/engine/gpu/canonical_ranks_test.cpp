// Engines with canonical ranks on devices: bit-identical on every number of ranks, whatever the number of rows.
#include <gmock/gmock.h>

#include <mutex>
#include <numeric>

#include "unit/engine/gpu/decoder_steps.hpp"
#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::floats_of;
using accord::testing::HostBlas;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

// As many rows as each of the kernels takes: 1, 2, 4 or 8 at once, and more than a tile has.
TEST_F(DeviceModels, an_encoder_with_canonical_ranks_is_bit_identical_on_any_number_of_ranks) {
  const TinyEncoder model(8);
  model.write(path("eight"));
  const int products = HostBlas::instance().products();
  const auto norms_of_plans = [] { return HostRuntime::instance().launches("run_plan_norm_float32"); };
  const int norms = norms_of_plans();
  for (const std::int64_t length : {1, 2, 3, 8, 64}) {
    const std::int64_t batch = length > 16 ? 4 : 1, each = length / batch;
    const std::vector<std::int64_t> ids = some_ids(length);
    std::mutex mutex;
    std::vector<std::vector<float>> outputs;
    for (const int size : {1, 2, 4}) {
      on_ranks("eight", size, {.device = kGpu, .canonical_ranks = 8}, [&](Engine& engine, Rank) {
        Result<EngineContext> context = engine.create_context();
        std::vector<HostTensor> inputs = {whole_numbers({batch, each}, ids)};
        for (int run = 0; run < 3; ++run) {  // directly, captured, as a graph
          const Result<std::vector<TensorView>> made = context->run(views_of(inputs));
          ASSERT_TRUE(made.ok()) << made.status().to_string();
          const std::lock_guard lock(mutex);
          outputs.push_back(floats_of((*made)[0]));
        }
      });
    }
    ASSERT_EQ(outputs.size(), 3U * (1 + 2 + 4));
    EXPECT_THAT(outputs, Each(Eq(outputs[0]))) << length << " rows";
    const std::vector<double> exact = model.reference(ids, each);
    expect_near(outputs[0], std::vector<float>(exact.begin(), exact.end()), 1e-4F);
  }
  // The library may choose a different kernel for different sizes, so it must not be used.
  EXPECT_EQ(HostBlas::instance().products(), products);
  // Nor must the norm in a plan's kernel, whose threads differ from those of the norm's own kernel.
  EXPECT_EQ(norms_of_plans(), norms);
}

TEST_F(DeviceModels, a_decoder_with_canonical_ranks_is_bit_identical_on_one_rank_and_two) {
  for (const DType cache : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<float> near;
    on_ranks("decoder", 1, {}, [&](Engine& engine, Rank) { near = run_steps(engine, cache); });
    std::mutex mutex;
    std::vector<std::vector<float>> logits;
    for (const int size : {1, 2}) {
      on_ranks("decoder", size, {.device = kGpu, .canonical_ranks = 2}, [&](Engine& engine, Rank) {
        const std::vector<float> these = run_steps(engine, cache);
        const std::lock_guard lock(mutex);
        logits.push_back(these);
      });
    }
    ASSERT_EQ(logits.size(), 3U);
    EXPECT_THAT(logits, Each(Eq(logits[0])));
    expect_near(logits[0], near, 2e-4F);
  }
}

// 64 rows after 1152 tokens, which repeat the same 16. With a key head on each rank a context would be divided into 5
// parts, with both heads on one rank into 4.
TEST_F(DeviceModels, a_long_context_is_divided_in_the_same_way_on_one_rank_and_two) {
  constexpr std::int64_t kOfBlock = 16;
  std::vector<std::int32_t> blocks(72, 0);
  for (const std::int32_t own : {1, 2, 3, 4}) blocks.push_back(own);
  std::mutex mutex;
  std::vector<std::vector<float>> logits;
  for (const int size : {1, 2}) {
    on_ranks("decoder", size, {.device = kGpu, .canonical_ranks = 2}, [&](Engine& engine, Rank) {
      Result<EngineContext> context = engine.create_context();
      ASSERT_TRUE(context->create_cache({.blocks = 80, .block_tokens = kOfBlock}).ok());
      for (const auto& [rows, before] :
           {std::pair{kOfBlock, std::int64_t{0}}, std::pair{4 * kOfBlock, 72 * kOfBlock}}) {
        std::vector<std::int64_t> ids(static_cast<std::size_t>(rows)), positions(ids.size());
        for (std::size_t i = 0; i < ids.size(); ++i)
          ids[i] = static_cast<std::int64_t>(i) * 7 % TinyDecoder::kVocabulary;
        std::iota(positions.begin(), positions.end(), 0);
        std::vector<HostTensor> inputs = {whole_numbers({rows}, ids), whole_numbers({rows}, positions),
                                          whole_numbers({2}, {0, rows - 1})};
        const std::vector<SequenceRows> sequence = {{rows, before, blocks}};
        const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs), sequence);
        ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
        if (before == 0) continue;
        const std::lock_guard lock(mutex);
        logits.push_back(floats_of((*outputs)[0]));
      }
    });
  }
  ASSERT_EQ(logits.size(), 3U);
  EXPECT_THAT(logits, Each(Eq(logits[0])));
}

TEST_F(DeviceModels, options_that_would_change_bits_are_rejected_with_canonical_ranks) {
  const auto refusal = [&](LoadOptions options) {
    options.device = kGpu;
    options.canonical_ranks = 2;
    const Status status = Engine::load(path("encoder"), {}, options).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    return status.message();
  };
  EXPECT_THAT(refusal({.overlap_rows = 16}), HasSubstr("overlap_rows"));
  EXPECT_THAT(refusal({.activation_dtype = DType::kFloat8E4M3FN}), HasSubstr("activation_dtype"));
}

}  // namespace
}  // namespace accord::engine
