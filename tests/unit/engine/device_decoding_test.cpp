// Attention of single rows over the paged cache: the kernel by itself, for blocks of several sizes, against the formula; in an engine, against
// the one on the CPU.
#include <cmath>
#include <numeric>

#include "engine/device/decoding_kernel.hpp"
#include "unit/engine/device_blocks.hpp"
#include "unit/engine/device_engines.hpp"

namespace accord::engine {
namespace {

using accord::testing::floats_of;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using accord::testing::some_numbers;

struct Case {
  std::int64_t heads = 1, kv_heads = 1, head_dim = 8, value_dim = 8, block_tokens = 16;
  std::vector<std::int32_t> tokens;  ///< each row's own
  std::int64_t window = 0;
  float softcap = 0.0F;
  int splits = 1;
  BlockSize size;
};

/// Sequences of one row each in a cache of kDType whose blocks lie in any order; what no token has written there is NaN.
template <DType kDType>
class Decoding {
 public:
  explicit Decoding(const Case& of) : of_(of), queries_(some_numbers(count(rows() * of.heads * of.head_dim), 3)) {
    const std::int64_t blocks_each = *std::max_element(of.tokens.begin(), of.tokens.end()) / of.block_tokens + 1;
    std::vector<std::int32_t> tables(count(rows() * blocks_each));
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), std::mt19937(4));
    const std::int64_t cached = rows() * blocks_each * of.block_tokens * of.kv_heads;
    keys_ = Memory(count(cached * of.head_dim) * size_of(kDType));
    values_ = Memory(count(cached * of.value_dim) * size_of(kDType));
    cache_ = {keys_.data(), values_.data(), kDType, of.block_tokens, of.kv_heads, of.head_dim, of.value_dim};
    for (std::int64_t row = 0; row < rows(); ++row)
      places_.push_back({of.tokens[static_cast<std::size_t>(row)], static_cast<std::int32_t>(row * blocks_each)});
    tables_ = tables;
    std::mt19937 random(5);
    std::uniform_real_distribution<float> numbers(-2.0F, 2.0F);
    for (const RowPlace& place : places_) {
      for (std::int64_t token = 0; token <= place.token; ++token) {
        for (std::int64_t head = 0; head < of.kv_heads; ++head) {
          const std::int64_t row = cache_.row_of(tables_.data() + place.table, head, token);
          for (std::int64_t d = 0; d < of.head_dim; ++d)
            device::store_float(cache_.keys, kDType, row * of.head_dim + d, numbers(random));
          for (std::int64_t d = 0; d < of.value_dim; ++d)
            device::store_float(cache_.values, kDType, row * of.value_dim + d, numbers(random));
        }
      }
    }
  }

  void spoil_key(std::int64_t token, std::int64_t head) {
    const std::int64_t row = cache_.row_of(tables_.data() + places_[0].table, head, token);
    device::store_float(cache_.keys, kDType, row * of_.head_dim, NAN);
  }

  template <int kQueries>
  std::vector<float> by_kernel() {
    std::vector<float> output(count(rows() * of_.heads * of_.value_dim), NAN);
    std::vector<float> partial(count(rows() * of_.heads * of_.splits * (of_.value_dim + 2)), NAN);
    DecodingAttention<kDType, kQueries> kernel;
    kernel.cache = cache_;
    kernel.batch = {places_.data(), tables_.data()};
    kernel.rows = rows();
    kernel.heads = of_.heads;
    kernel.window = of_.window;
    kernel.scale = kScale;
    kernel.softcap = of_.softcap;
    kernel.q = {queries_.data(), DType::kFloat32, of_.heads * of_.head_dim, of_.head_dim};
    kernel.output = {output.data(), DType::kFloat32, of_.heads * of_.value_dim, of_.value_dim};
    kernel.splits = of_.splits;
    kernel.partial = partial.data();
    const std::size_t bytes = kernel.shared_bytes(of_.head_dim, of_.value_dim, of_.size.threads, of_.size.lanes);
    run_blocks(kernel, 3, of_.size, bytes);
    const CombineSplits combine{partial.data(), rows(), of_.heads, of_.value_dim, of_.splits, kernel.output};
    if (of_.splits > 1) run_blocks(combine, 2, of_.size, 0);
    return output;
  }

  std::vector<float> by_formula() const {
    std::vector<float> output;
    for (std::int64_t row = 0; row < rows(); ++row) {
      const RowPlace place = places_[static_cast<std::size_t>(row)];
      const std::int64_t first = of_.window > 0 ? std::max<std::int64_t>(place.token + 1 - of_.window, 0) : 0;
      for (std::int64_t head = 0; head < of_.heads; ++head) {
        std::vector<double> sums(count(of_.value_dim));
        double total = 0.0;
        for (std::int64_t token = first; token <= place.token; ++token) {
          const std::int64_t at = cache_.row_of(tables_.data() + place.table, head / (of_.heads / of_.kv_heads), token);
          double score = 0.0;
          for (std::int64_t d = 0; d < of_.head_dim; ++d)
            score += static_cast<double>(queries_[count((row * of_.heads + head) * of_.head_dim + d)]) *
                     static_cast<double>(device::load_float(cache_.keys, kDType, at * of_.head_dim + d));
          score *= static_cast<double>(kScale);
          const auto cap = static_cast<double>(of_.softcap);
          const double weight = std::exp(cap > 0.0 ? cap * std::tanh(score / cap) : score);
          total += weight;
          for (std::int64_t d = 0; d < of_.value_dim; ++d)
            sums[count(d)] +=
                weight * static_cast<double>(device::load_float(cache_.values, kDType, at * of_.value_dim + d));
        }
        for (const double sum : sums) output.push_back(static_cast<float>(sum / total));
      }
    }
    return output;
  }

 private:
  static constexpr float kScale = 0.3F;
  /// Aligned as a device's, all NaN.
  class Memory {
   public:
    explicit Memory(std::size_t bytes = 0) : words_(bytes / sizeof(Words) + 1) {
      std::memset(words_.data(), 0xFF, words_.size() * sizeof(Words));
    }
    void* data() { return words_.data(); }

   private:
    std::vector<Words> words_;
  };
  static std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::int64_t rows() const { return static_cast<std::int64_t>(of_.tokens.size()); }

  const Case of_;
  std::vector<float> queries_;
  Memory keys_, values_;
  DeviceCacheLayer cache_;
  std::vector<RowPlace> places_;
  std::vector<std::int32_t> tables_;
};

class DeviceDecoding : public accord::testing::DeviceEngines {
 protected:
  template <DType kDType>
  static void expect_formula_of(const Case& of) {
    Decoding<kDType> decoding(of);
    const std::vector<float> expected = decoding.by_formula();
    expect_near(decoding.template by_kernel<1>(), expected, 2e-5F);
    expect_near(decoding.template by_kernel<4>(), expected, 2e-5F);
    expect_near(decoding.template by_kernel<8>(), expected, 2e-5F);
  }
  static void expect_formula(const Case& of) {
    expect_formula_of<DType::kFloat32>(of);
    expect_formula_of<DType::kBFloat16>(of);
  }
};

TEST_F(DeviceDecoding, blocks_of_any_number_of_threads_and_lanes_give_the_formula) {
  for (const BlockSize size : {BlockSize{1, 1}, BlockSize{4, 2}, BlockSize{6, 3}, BlockSize{8, 8}, BlockSize{16, 8}}) {
    SCOPED_TRACE(std::to_string(size.threads) + " threads in warps of " + std::to_string(size.lanes));
    expect_formula({.heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 24, .tokens = {37, 0}, .size = size});
  }
}

TEST_F(DeviceDecoding, query_heads_that_share_a_key_head) {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, std::pair{3, 1}, std::pair{10, 2}, std::pair{12, 1}}) {
    SCOPED_TRACE(std::to_string(heads) + " heads over " + std::to_string(kv_heads));
    expect_formula({.heads = heads, .kv_heads = kv_heads, .tokens = {5, 20}, .size = {4, 2}});
  }
}

TEST_F(DeviceDecoding, contexts_that_end_anywhere_in_a_block_of_the_cache) {
  for (const std::int32_t token : {0, 1, 6, 7, 8, 13, 14, 30})
    expect_formula({.heads = 2, .block_tokens = 7, .tokens = {token, 3}, .size = {4, 4}});
}

TEST_F(DeviceDecoding, long_contexts_in_parts_beside_short_ones) {
  for (const int splits : {2, 3, 8})
    expect_formula({.heads = 2, .value_dim = 16, .tokens = {611, 255, 256, 0}, .splits = splits, .size = {4, 2}});
}

TEST_F(DeviceDecoding, windows_and_capped_scores) {
  expect_formula({.heads = 2, .tokens = {40, 3, 4}, .window = 5, .size = {4, 2}});
  expect_formula({.heads = 2, .tokens = {500, 20}, .window = 300, .softcap = 1.5F, .splits = 4, .size = {4, 2}});
}

TEST_F(DeviceDecoding, one_nan_of_a_key_is_nan_for_the_heads_that_see_it) {
  Case of{.heads = 2, .kv_heads = 2, .tokens = {300}, .splits = 2, .size = {4, 2}};
  Decoding<DType::kFloat32> decoding(of);
  decoding.spoil_key(299, 1);
  const std::vector<float> output = decoding.by_kernel<1>();
  for (std::size_t i = 0; i < output.size(); ++i) EXPECT_EQ(std::isnan(output[i]), i >= output.size() / 2) << i;
}

/// An engine that is one attention over the cache, [1, heads, tokens, dim].
struct OneAttention {
  std::int64_t heads = 4, kv_heads = 2, head_dim = 8, value_dim = 8, window = 0;
  DType cache = DType::kFloat32;

  EngineParts parts() const {
    const auto text = [](std::int64_t size) { return std::to_string(size); };
    GraphWriter writer;
    writer.symbol("tokens", 1, 1000);
    const ValueId q = writer.input("q", shape_of({"1", text(heads), "tokens", text(head_dim)}));
    const ValueId k = writer.input("k", shape_of({"1", text(kv_heads), "tokens", text(head_dim)}));
    const ValueId v = writer.input("v", shape_of({"1", text(kv_heads), "tokens", text(value_dim)}));
    writer.output(writer.node("accord.attention.default",
                              {{"query", of(q)},
                               {"key", of(k)},
                               {"value", of(v)},
                               {"layer", number(0)},
                               {"scale", 0.35},
                               {"window", number(window)}},
                              shape_of({"1", "tokens", text(heads), text(value_dim)})));
    return {.name = "one", .graph = to_json(writer.graph()), .weights = {}, .sizes = {}};
  }

  /// A prompt of 530 tokens and one of 21, then two tokens of each, a token a step; what the steps gave.
  std::vector<float> run_on(Device device) const {
    Result<Engine> engine = Engine::assemble(parts(), {}, {.device = device});
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    EXPECT_TRUE(engine->bind().ok());
    Result<EngineContext> context = engine->create_context();
    EXPECT_TRUE(context->create_cache({.blocks = 40, .block_tokens = 16, .dtype = cache}).ok());
    std::vector<std::int32_t> blocks(40);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(6));
    const std::span<const std::int32_t> first(blocks.data(), 35), second(blocks.data() + 35, 3);
    std::vector<float> all;
    for (int step = 0; step < 4; ++step) {
      std::vector<SequenceRows> sequences = {{530, 0, first}, {21, 0, second}};
      if (step > 0) sequences = {{1, 529 + step, first}, {1, 20 + step, second}};
      const std::int64_t tokens = sequences[0].rows + sequences[1].rows;
      const auto tensor = [&](std::int64_t its_heads, std::int64_t dim, unsigned seed) {
        return HostTensor(
            DType::kFloat32, {1, its_heads, tokens, dim},
            some_numbers(static_cast<std::size_t>(its_heads * tokens * dim), seed + static_cast<unsigned>(step) * 3));
      };
      std::vector<HostTensor> inputs = {tensor(heads, head_dim, 1), tensor(kv_heads, head_dim, 2),
                                        tensor(kv_heads, value_dim, 3)};
      std::vector<TensorView> views;
      for (HostTensor& input : inputs) views.push_back(input.view());
      const Result<std::vector<TensorView>> outputs = context->run(views, sequences);
      EXPECT_TRUE(outputs.ok()) << outputs.status().to_string();
      if (!outputs.ok()) return all;
      const std::vector<float> these = floats_of((*outputs)[0]);
      all.insert(all.end(), these.begin(), these.end());
    }
    return all;
  }
};

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
    // The prompts are another kernel's; of three steps alike the last is a graph's, as the second was captured.
    EXPECT_EQ(HostRuntime::instance().launches(expected.kernel) - before,
              expected.kernel == "engine_paged_attention" ? 3 : 2);
  }
}

}  // namespace
}  // namespace accord::engine
