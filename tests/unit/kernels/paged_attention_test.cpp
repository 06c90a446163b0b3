// Paged attention compared with a double-precision loop over the tokens of one sequence, whose blocks are in any
// order.

#include "kernels/attention/paged_attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "every_instruction_set.hpp"
#include "half_reference.hpp"
#include "kernels/attention/merge_parts.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

struct Shape {
  std::int64_t tokens = 0;
  std::int64_t heads = 1, kv_heads = 1;
  std::int64_t head_dim = 16, value_dim = 16;
  std::int64_t block_tokens = 16;
  DType dtype = DType::kFloat32;
  float softcap = 0.0F;
  std::int64_t window = 0;
  bool has_sinks = false, has_slopes = false;
  ValuePlace value_place = ValuePlace::kOwn;
  std::int64_t chunk = 0;
};

// One sequence: the queries, keys and values of all its tokens, a cache that is larger than it needs, and its block
// table.
struct Sequence {
  Shape shape;
  std::vector<float> q, k, v, output, sinks, slopes;
  std::vector<std::byte> keys, values;
  std::vector<std::int32_t> table;
  PagedAttentionCall call;

  explicit Sequence(const Shape& given)
      : shape(given),
        q(random_floats(static_cast<std::size_t>(given.tokens * given.heads * given.head_dim), 1)),
        k(random_floats(static_cast<std::size_t>(given.tokens * given.kv_heads * given.head_dim), 2)),
        v(random_floats(static_cast<std::size_t>(given.tokens * given.kv_heads * given.value_dim), 3)),
        output(static_cast<std::size_t>(given.tokens * given.heads * given.value_dim), 77.0F) {
    const std::int64_t needed = (shape.tokens + shape.block_tokens - 1) / shape.block_tokens;
    call.cache = {.dtype = shape.dtype,
                  .blocks = 2 * needed + 3,
                  .block_tokens = shape.block_tokens,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .value_dim = shape.value_dim,
                  .value_place = shape.value_place};
    keys.resize(key_bytes(call.cache));
    values.resize(value_bytes(call.cache));
    call.cache.keys = keys.data();
    call.cache.values = values.data();
    std::vector<std::int32_t> all(static_cast<std::size_t>(call.cache.blocks));
    std::iota(all.begin(), all.end(), 0);
    std::mt19937 random(4);
    std::shuffle(all.begin(), all.end(), random);
    table.assign(all.begin(), all.begin() + needed);
    call.heads = shape.heads;
    call.scale = 1.7F;
    call.softcap = shape.softcap;
    call.window = shape.window;
    call.chunk = shape.chunk;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      sinks.push_back(static_cast<float>(head % 3) * 2.5F - 2.0F);
      slopes.push_back(std::exp2(-static_cast<float>(head)));
    }
    if (shape.has_sinks) call.sinks = sinks.data();
    if (shape.has_slopes) call.slopes = slopes.data();
  }

  SequenceRows rows(std::int64_t context, std::int64_t count) const { return {count, context, table}; }

  // Appends and attends tokens [first, first + count), as a step of an engine does.
  void step(std::int64_t first, std::int64_t count) {
    const SequenceRows these = rows(first, count);
    const std::int64_t key_row = shape.kv_heads * shape.head_dim;
    const std::int64_t value_row = shape.kv_heads * shape.value_dim;
    ConstTokenRows its_values;
    if (shape.value_place == ValuePlace::kOwn) its_values = {v.data() + first * value_row, value_row, shape.value_dim};
    append_to_cache(call.cache, these, {k.data() + first * key_row, key_row, shape.head_dim}, its_values, 0,
                    shape.kv_heads);
    const std::int64_t q_row = shape.heads * shape.head_dim;
    const std::int64_t output_row = shape.heads * shape.value_dim;
    call.q = {q.data() + first * q_row, q_row, shape.head_dim};
    call.output = {output.data() + first * output_row, output_row, shape.value_dim};
    std::vector<float> scratch(paged_attention_scratch(call));
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      for (std::int64_t set = 0; set < head_sets(call); ++set)
        paged_attention(call, these, {head, set, 0, count}, scratch);
    }
  }

  // Returns the stored value of element `i` of the `count` elements from `row` on.
  double kept(const float* row, std::int64_t count, std::int64_t i) const {
    const auto value = static_cast<double>(row[i]);
    if (shape.dtype == DType::kFloat32) return value;
    if (shape.dtype == DType::kInt8) {
      float most = 0.0F;
      for (std::int64_t other = 0; other < count; ++other) most = std::max(most, std::abs(row[other]));
      const float scale = most / 127.0F;
      return std::nearbyint(row[i] / scale) * static_cast<double>(scale);
    }
    const HalfReference& bfloat16 = HalfReference::bfloat16();
    return bfloat16.decode(bfloat16.encode(value));
  }

  std::vector<double> expected(std::int64_t token, std::int64_t head) const {
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const std::int64_t of_window = shape.window > 0 ? std::max<std::int64_t>(0, token + 1 - shape.window) : 0;
    const std::int64_t first = std::max(of_window, shape.chunk > 0 ? token - token % shape.chunk : 0);
    std::vector<double> sums(static_cast<std::size_t>(shape.value_dim), 0.0);
    double total = 0.0;
    for (std::int64_t other = first; other <= token; ++other) {
      double score = 0.0;
      for (std::int64_t i = 0; i < shape.head_dim; ++i) {
        const auto at_q = static_cast<std::size_t>((token * shape.heads + head) * shape.head_dim + i);
        const float* key = k.data() + (other * shape.kv_heads + kv_head) * shape.head_dim;
        score += static_cast<double>(q[at_q]) * kept(key, shape.head_dim, i);
      }
      score *= static_cast<double>(call.scale);
      if (shape.softcap > 0) score = std::tanh(score / shape.softcap) * shape.softcap;
      const auto of_head = static_cast<std::size_t>(head);
      if (shape.has_slopes) score += static_cast<double>(slopes[of_head]) * static_cast<double>(other - token);
      const double p = std::exp(score);
      total += p;
      for (std::int64_t i = 0; i < shape.value_dim; ++i) {
        const bool in_keys = shape.value_place == ValuePlace::kInKeys;
        const std::int64_t dim = in_keys ? shape.head_dim : shape.value_dim;
        const float* value = (in_keys ? k : v).data() + (other * shape.kv_heads + kv_head) * dim;
        sums[static_cast<std::size_t>(i)] += p * kept(value, dim, i);
      }
    }
    if (shape.has_sinks) total += std::exp(static_cast<double>(sinks[static_cast<std::size_t>(head)]));
    for (double& sum : sums) sum /= total;
    return sums;
  }

  void check() const {
    for (std::int64_t token = 0; token < shape.tokens; ++token) {
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const std::vector<double> right = expected(token, head);
        for (std::int64_t i = 0; i < shape.value_dim; ++i) {
          const auto at = static_cast<std::size_t>((token * shape.heads + head) * shape.value_dim + i);
          ASSERT_NEAR(static_cast<double>(output[at]), right[static_cast<std::size_t>(i)], 2e-6)
              << "token " << token << " head " << head << " element " << i;
        }
      }
    }
  }
};

class PagedAttention : public EveryInstructionSet {};
ACCORD_ON_EVERY_INSTRUCTION_SET(PagedAttention);

TEST_P(PagedAttention, matches_the_definition_for_heads_groups_and_sizes_of_all_kinds) {
  for (const Shape& shape : {Shape{.tokens = 1}, Shape{.tokens = 40, .heads = 4, .kv_heads = 2, .head_dim = 64},
                             Shape{.tokens = 17, .heads = 9, .kv_heads = 3, .head_dim = 8, .value_dim = 5},
                             Shape{.tokens = 33, .heads = 20, .kv_heads = 1, .head_dim = 3, .block_tokens = 48},
                             Shape{.tokens = 90, .heads = 2, .kv_heads = 2, .value_dim = 80},
                             Shape{.tokens = 200, .heads = 4, .kv_heads = 2, .head_dim = 32, .value_dim = 112},
                             Shape{.tokens = 300, .heads = 2, .kv_heads = 2, .value_dim = 33, .block_tokens = 32}}) {
    Sequence sequence(shape);
    sequence.step(0, shape.tokens);
    sequence.check();
  }
}

TEST_P(PagedAttention, supports_a_window_a_cap_bfloat16_and_int8) {
  for (const Shape& shape :
       {Shape{.tokens = 300, .heads = 2, .window = 1}, Shape{.tokens = 600, .heads = 3, .head_dim = 4, .window = 270},
        Shape{.tokens = 50, .heads = 4, .softcap = 2.5F},
        Shape{.tokens = 300, .heads = 4, .kv_heads = 2, .head_dim = 32, .value_dim = 20, .dtype = DType::kBFloat16},
        Shape{.tokens = 300,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 32,
        .value_dim = 20,
        .block_tokens = 48,
        .dtype = DType::kInt8},
        Shape{.tokens = 280, .heads = 2, .head_dim = 7, .value_dim = 5, .dtype = DType::kInt8, .window = 100}}) {
    Sequence sequence(shape);
    sequence.step(0, shape.tokens);
    sequence.check();
  }
}

TEST_P(PagedAttention, supports_chunks) {
  for (const Shape& shape : {Shape{.tokens = 300, .heads = 2, .chunk = 1}, Shape{.tokens = 300, .heads = 4, .chunk = 100},
                             Shape{.tokens = 600, .heads = 9, .kv_heads = 3, .window = 70, .chunk = 270},
                             Shape{.tokens = 90, .heads = 2, .block_tokens = 48, .dtype = DType::kInt8, .chunk = 33}}) {
    Sequence sequence(shape);
    sequence.step(0, shape.tokens);
    sequence.check();
  }
}

TEST_P(PagedAttention, supports_sinks_and_biases_by_distance) {
  for (const Shape& shape :
       {Shape{.tokens = 1, .has_sinks = true}, Shape{.tokens = 300, .heads = 6, .kv_heads = 2, .has_sinks = true},
        Shape{.tokens = 600, .heads = 12, .window = 100, .has_sinks = true},
        Shape{.tokens = 300, .heads = 4, .head_dim = 8, .dtype = DType::kInt8, .has_slopes = true},
        Shape{.tokens = 550, .heads = 10, .has_sinks = true, .has_slopes = true}}) {
    Sequence sequence(shape);
    sequence.step(0, shape.tokens);
    sequence.check();
  }
}

TEST_P(PagedAttention, reads_values_that_are_the_beginning_of_keys) {
  constexpr ValuePlace kInKeys = ValuePlace::kInKeys;
  for (const Shape& shape :
       {Shape{.tokens = 1, .head_dim = 24, .value_place = kInKeys},
        Shape{.tokens = 300, .heads = 16, .head_dim = 40, .value_dim = 32, .value_place = kInKeys},
        Shape{.tokens = 70, .heads = 7, .head_dim = 72, .value_dim = 64, .block_tokens = 48, .value_place = kInKeys},
        Shape{.tokens = 280, .heads = 3, .head_dim = 21, .value_dim = 21, .window = 100, .value_place = kInKeys},
        Shape{.tokens = 90, .heads = 9, .head_dim = 19, .value_dim = 13, .softcap = 2.5F, .value_place = kInKeys},
        Shape{.tokens = 90, .heads = 4, .kv_heads = 2, .head_dim = 24, .value_dim = 8, .value_place = kInKeys},
        Shape{.tokens = 300,
        .heads = 12,
        .head_dim = 40,
        .value_dim = 32,
        .dtype = DType::kBFloat16,
        .has_sinks = true,
        .has_slopes = true,
        .value_place = kInKeys},
        Shape{.tokens = 300,
        .heads = 5,
        .head_dim = 40,
        .value_dim = 30,
        .block_tokens = 32,
        .dtype = DType::kInt8,
        .value_place = kInKeys}}) {
    Sequence sequence(shape);
    sequence.step(0, shape.tokens);
    sequence.check();
  }
}

TEST_P(PagedAttention, keeps_nothing_beside_keys_that_contain_their_values) {
  const PagedCache cache{.blocks = 3,
                         .block_tokens = 32,
                         .kv_heads = 1,
                         .head_dim = 576,
                         .value_dim = 512,
                         .value_place = ValuePlace::kInKeys};
  EXPECT_EQ(key_bytes(cache), std::size_t{3 * 32 * 576 * 4});
  EXPECT_EQ(value_bytes(cache), 0U);
}

TEST_P(PagedAttention, a_rows_bits_do_not_depend_on_other_rows_or_on_the_blocks) {
  for (const auto& [dtype, place] :
       {std::pair{DType::kFloat32, ValuePlace::kOwn}, std::pair{DType::kBFloat16, ValuePlace::kOwn},
        std::pair{DType::kInt8, ValuePlace::kOwn}, std::pair{DType::kFloat32, ValuePlace::kInKeys},
        std::pair{DType::kInt8, ValuePlace::kInKeys}}) {
    const Shape shape{.tokens = 530,
                      .heads = 6,
                      .kv_heads = 2,
                      .head_dim = 24,
                      .value_dim = 20,
                      .dtype = dtype,
                      .has_sinks = true,
                      .has_slopes = true,
                      .value_place = place};
    Sequence whole(shape);
    whole.step(0, shape.tokens);
    Shape larger_blocks = shape;
    larger_blocks.block_tokens = 64;
    Sequence pieces(larger_blocks);
    std::int64_t at = 0;
    for (const std::int64_t count : {250, 13, 1, 1, 40, 7, 218}) {
      pieces.step(at, count);
      at += count;
    }
    ASSERT_EQ(at, shape.tokens);
    EXPECT_EQ(whole.output, pieces.output);
  }
}

// Attends to each part of the tokens by itself, from caches that hold `parts / caches` parts each, and merges them.
// Blocks of `shape` are divided into `parts`.
std::vector<float> attend_in_parts(const Shape& shape, std::int64_t parts, std::int64_t caches) {
  Sequence whole(shape);
  const std::int64_t run = shape.block_tokens / parts, kept_parts = parts / caches;
  const std::int64_t record = shape.value_dim + 2, row = shape.heads * record;
  std::vector<float> outputs(static_cast<std::size_t>(parts * shape.tokens * row));
  for (std::int64_t cache = 0; cache < caches; ++cache) {
    Shape of_cache = shape;
    of_cache.block_tokens = kept_parts * run;
    Sequence kept(of_cache);
    kept.table.resize(whole.table.size());
    std::iota(kept.table.rbegin(), kept.table.rend(), 0);
    for (std::int64_t token = 0; token < shape.tokens; ++token) {
      const std::int64_t place = token % shape.block_tokens - cache * kept_parts * run;
      if (place < 0 || place >= kept_parts * run) continue;
      const SequenceRows one = {1, token / shape.block_tokens * kept_parts * run + place, kept.table};
      const std::int64_t key_row = shape.kv_heads * shape.head_dim, value_row = shape.kv_heads * shape.value_dim;
      append_to_cache(kept.call.cache, one, {kept.k.data() + token * key_row, key_row, shape.head_dim},
                      {kept.v.data() + token * value_row, value_row, shape.value_dim}, 0, shape.kv_heads);
    }
    PagedAttentionCall call = kept.call;
    call.sinks = nullptr;
    call.is_partial = true;
    call.q = {kept.q.data(), shape.heads * shape.head_dim, shape.head_dim};
    std::vector<float> scratch(paged_attention_scratch(call));
    for (std::int64_t part = cache * kept_parts; part < (cache + 1) * kept_parts; ++part) {
      call.part = {.parts = parts, .part = part, .first = cache * kept_parts, .tokens = run};
      call.output = {outputs.data() + part * shape.tokens * row, row, record};
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        for (std::int64_t set = 0; set < head_sets(call); ++set)
          paged_attention(call, {shape.tokens, 0, kept.table}, {head, set, 0, shape.tokens}, scratch);
      }
    }
  }
  MergePartsCall merge{.outputs = {outputs.data(), row, record},
                       .part_stride = shape.tokens * row,
                       .parts = parts,
                       .heads = shape.heads,
                       .value_dim = shape.value_dim,
                       .sinks = whole.call.sinks,
                       .output = {whole.output.data(), shape.heads * shape.value_dim, shape.value_dim}};
  merge_parts(merge, 0, shape.tokens);
  whole.check();
  return whole.output;
}

TEST_P(PagedAttention, parts_of_the_tokens_merge_to_the_whole_with_the_same_bits_from_any_number_of_caches) {
  for (const Shape& shape :
       {Shape{.tokens = 300, .heads = 6, .kv_heads = 2, .head_dim = 24, .value_dim = 20, .block_tokens = 64},
        Shape{.tokens = 3, .block_tokens = 128}, Shape{.tokens = 600, .heads = 2, .block_tokens = 64, .window = 70},
        Shape{.tokens = 300, .heads = 2, .block_tokens = 64, .chunk = 90},
        Shape{.tokens = 390, .heads = 4, .block_tokens = 128, .softcap = 2.5F, .has_sinks = true, .has_slopes = true},
        Shape{.tokens = 280, .heads = 2, .head_dim = 7, .value_dim = 5, .block_tokens = 64, .dtype = DType::kInt8},
        Shape{.tokens = 90, .block_tokens = 192, .dtype = DType::kBFloat16, .window = 20, .has_sinks = true},
        Shape{.tokens = 210,
              .heads = 11,
              .head_dim = 40,
              .value_dim = 33,
              .block_tokens = 64,
              .dtype = DType::kInt8,
              .value_place = ValuePlace::kInKeys}}) {
    const std::vector<float> of_one = attend_in_parts(shape, 4, 1);
    EXPECT_EQ(of_one, attend_in_parts(shape, 4, 2));
    EXPECT_EQ(of_one, attend_in_parts(shape, 4, 4));
    attend_in_parts(shape, 2, 2);
  }
}

TEST_P(PagedAttention, a_nan_and_large_scores_stay_in_their_rows) {
  const Shape shape{.tokens = 20, .heads = 2, .kv_heads = 1};
  Sequence sequence(shape);
  Sequence other(shape);
  other.q[5 * 2 * 16 + 3] = NAN;  // token 5, head 0
  for (std::int64_t i = 0; i < 16; ++i)
    other.q[static_cast<std::size_t>(7 * 2 * 16 + 16 + i)] *= 1e30F;  // token 7, head 1
  sequence.step(0, shape.tokens);
  other.step(0, shape.tokens);
  for (std::size_t i = 0; i < sequence.output.size(); ++i) {
    const std::size_t query = i / 16;
    if (query == 10) {
      EXPECT_TRUE(std::isnan(other.output[i]));
    } else if (query == 15) {
      EXPECT_TRUE(std::isfinite(other.output[i]));
    } else {
      EXPECT_EQ(sequence.output[i], other.output[i]);
    }
  }
}

TEST_P(PagedAttention, encodes_rows_that_are_zero_tiny_or_not_numbers) {
  Shape shape{.tokens = 4, .dtype = DType::kInt8};
  Sequence sequence(shape);
  const auto fill = [&](std::vector<float>& rows, std::size_t token, float with) {
    std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>(16 * token), 16, with);
  };
  fill(sequence.k, 0, 0.0F);
  fill(sequence.v, 0, 0.0F);
  fill(sequence.v, 1, std::numeric_limits<float>::denorm_min() * 190);  // a 127th of it rounds to a third less
  sequence.v[3 * 16 + 4] = INFINITY;
  sequence.step(0, 3);
  sequence.step(3, 1);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(sequence.output[i], 0.0F);
    EXPECT_LT(std::abs(sequence.output[16 + i]), 1e-40F);
    EXPECT_TRUE(std::isfinite(sequence.output[32 + i]));
    EXPECT_TRUE(std::isnan(sequence.output[48 + i]));
  }
}

class PagedAttentionOfAllSets : public ::testing::TestWithParam<std::pair<DType, ValuePlace>> {};
INSTANTIATE_TEST_SUITE_P(Caches, PagedAttentionOfAllSets,
                         ::testing::Values(std::pair{DType::kFloat32, ValuePlace::kOwn},
                                           std::pair{DType::kInt8, ValuePlace::kOwn},
                                           std::pair{DType::kFloat32, ValuePlace::kInKeys},
                                           std::pair{DType::kInt8, ValuePlace::kInKeys}));

TEST_P(PagedAttentionOfAllSets, sets_with_fused_multiply_add_are_bit_identical) {
  const Shape shape{.tokens = 300,
                    .heads = 8,
                    .kv_heads = 2,
                    .head_dim = 40,
                    .value_dim = 40,
                    .dtype = GetParam().first,
                    .value_place = GetParam().second};
  std::vector<std::vector<float>> outputs;
  for (const std::string& name : instruction_sets()) {
    if (name.find("AVX") == std::string::npos) continue;
    ASSERT_TRUE(use_instruction_set(name).ok());
    Sequence sequence(shape);
    sequence.step(0, shape.tokens);
    outputs.push_back(sequence.output);
  }
  ASSERT_TRUE(use_instruction_set("").ok());
  for (const std::vector<float>& output : outputs) EXPECT_EQ(output, outputs.front());
}

}  // namespace
}  // namespace accord::kernels
