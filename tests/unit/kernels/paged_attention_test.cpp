// Paged attention compared with a double-precision loop over the tokens of one sequence, whose blocks are in any
// order.

#include "kernels/attention/paged_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "every_instruction_set.hpp"
#include "paged_sequence.hpp"

namespace accord::kernels {
namespace {

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
  for (const Shape& shape :
       {Shape{.tokens = 300, .heads = 2, .chunk = 1}, Shape{.tokens = 300, .heads = 4, .chunk = 100},
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

TEST_P(PagedAttention, supports_a_table_of_biases_by_distance) {
  for (const Shape& shape : {Shape{.tokens = 1, .distances = 1}, Shape{.tokens = 300, .heads = 2, .distances = 129},
                             Shape{.tokens = 90, .heads = 9, .kv_heads = 3, .window = 20, .distances = 7},
                             Shape{.tokens = 550, .heads = 4, .dtype = DType::kInt8, .distances = 40}}) {
    Sequence sequence(shape);
    sequence.step(0, shape.tokens);
    sequence.check();
  }
}

TEST_P(PagedAttention, rows_may_attend_to_all_tokens_wherever_they_are) {
  for (const Shape& shape :
       {Shape{.tokens = 1, .sees_all = true}, Shape{.tokens = 300, .heads = 6, .kv_heads = 2, .sees_all = true},
        Shape{.tokens = 33, .heads = 9, .block_tokens = 48, .dtype = DType::kBFloat16, .sees_all = true}}) {
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
