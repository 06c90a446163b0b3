// Attention compared with a double-precision loop over its definition: masks, causality, shared key heads, strides,
// small scratch.

#include "kernels/attention/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "every_instruction_set.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

constexpr double kInfiniteScore = std::numeric_limits<double>::infinity();

// Tensors as PyTorch's linear layers produce them: [batch, length, heads, dim], seen as [batch, heads, length, dim].
ConstHeads heads_of(const std::vector<float>& data, std::int64_t length, std::int64_t heads, std::int64_t dim) {
  return {.data = data.data(), .batch_stride = length * heads * dim, .head_stride = dim, .row_stride = heads * dim};
}

struct Problem {
  AttentionCall call;
  std::vector<float> q, k, v, output;

  Problem(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t q_len, std::int64_t k_len,
          std::int64_t head_dim, std::int64_t value_dim)
      : q(random_floats(static_cast<std::size_t>(batch * q_len * heads * head_dim), 1)),
        k(random_floats(static_cast<std::size_t>(batch * k_len * kv_heads * head_dim), 2)),
        v(random_floats(static_cast<std::size_t>(batch * k_len * kv_heads * value_dim), 3)),
        output(static_cast<std::size_t>(batch * q_len * heads * value_dim), 77.0F) {
    call = {.batch = batch,
            .heads = heads,
            .kv_heads = kv_heads,
            .q_len = q_len,
            .k_len = k_len,
            .head_dim = head_dim,
            .value_dim = value_dim,
            .q = heads_of(q, q_len, heads, head_dim),
            .k = heads_of(k, k_len, kv_heads, head_dim),
            .v = heads_of(v, k_len, kv_heads, value_dim),
            .scale = 1.5F,
            .output = {.data = output.data(),
                       .batch_stride = q_len * heads * value_dim,
                       .head_stride = value_dim,
                       .row_stride = heads * value_dim}};
  }
};

double mask_value(const AttentionMask& mask, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const std::int64_t at = b * mask.batch_stride + h * mask.head_stride + i * mask.row_stride + j * mask.column_stride;
  if (mask.kind == MaskKind::kAdditive) return static_cast<double>(static_cast<const float*>(mask.data)[at]);
  if (mask.kind == MaskKind::kBool) return static_cast<const std::uint8_t*>(mask.data)[at] != 0 ? 0.0 : -kInfiniteScore;
  return 0.0;
}

double dot(const float* a, const float* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Runs the call with `scratch_size` floats and compares every output. A row without any key to attend to must be
// zeros.
void check_problem(Problem& problem, std::size_t scratch_size) {
  const AttentionCall& call = problem.call;
  std::vector<float> scratch(scratch_size);
  const Status status = attention(call, scratch);
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (std::int64_t b = 0; b < call.batch; ++b) {
    for (std::int64_t h = 0; h < call.heads; ++h) {
      const std::int64_t kv = h * call.kv_heads / call.heads;
      for (std::int64_t i = 0; i < call.q_len; ++i) {
        const float* const q = call.q.data + b * call.q.batch_stride + h * call.q.head_stride + i * call.q.row_stride;
        std::vector<double> weights;
        double sum = 0.0;
        for (std::int64_t j = 0; j < call.k_len; ++j) {
          const float* const k =
              call.k.data + b * call.k.batch_stride + kv * call.k.head_stride + j * call.k.row_stride;
          const bool visible = call.causality == Causality::kFull || j <= i;
          const double score =
              static_cast<double>(call.scale) * dot(q, k, call.head_dim) + mask_value(call.mask, b, h, i, j);
          weights.push_back(visible ? std::exp(score) : 0.0);
          sum += weights.back();
        }
        for (std::int64_t d = 0; d < call.value_dim; ++d) {
          double want = 0.0;
          for (std::int64_t j = 0; j < call.k_len; ++j) {
            const double v = static_cast<double>(
                call.v.data[b * call.v.batch_stride + kv * call.v.head_stride + j * call.v.row_stride + d]);
            if (sum > 0.0) want += weights[static_cast<std::size_t>(j)] / sum * v;
          }
          const float got =
              call.output
                  .data[b * call.output.batch_stride + h * call.output.head_stride + i * call.output.row_stride + d];
          ASSERT_NEAR(static_cast<double>(got), want, 2e-6) << "batch " << b << " head " << h << " row " << i;
        }
      }
    }
  }
}

class Attention : public EveryInstructionSet {};

TEST_P(Attention, agrees_with_its_definition_for_many_lengths) {
  for (const std::int64_t q_len : {1, 7, 130}) {
    for (const std::int64_t k_len : {1, 16, 33, 257}) {
      Problem problem(2, 4, 4, q_len, k_len, 32, 24);
      check_problem(problem, attention_scratch(problem.call));
    }
  }
}

TEST_P(Attention, gives_the_same_result_with_minimal_scratch) {
  Problem problem(1, 2, 2, 9, 21, 8, 8);
  check_problem(problem, attention_scratch_min(problem.call));
  check_problem(problem, 5 * attention_scratch_min(problem.call));
  std::vector<float> too_little(attention_scratch_min(problem.call) - 1);
  EXPECT_EQ(attention(problem.call, too_little).code(), StatusCode::kInvalidArgument);
}

TEST_P(Attention, adds_a_float_mask_of_any_broadcast_shape) {
  const std::vector<float> mask = random_floats(2 * 4 * 9 * 21, 5, -4.0F, 4.0F);
  for (const AttentionMask shape :
       {AttentionMask{.batch_stride = 4 * 9 * 21, .head_stride = 9 * 21, .row_stride = 21, .column_stride = 1},
        AttentionMask{.batch_stride = 21, .column_stride = 1}, AttentionMask{.head_stride = 9, .row_stride = 1},
        AttentionMask{.row_stride = 1, .column_stride = 9}}) {
    Problem problem(2, 4, 4, 9, 21, 16, 16);
    problem.call.mask = shape;
    problem.call.mask.kind = MaskKind::kAdditive;
    problem.call.mask.data = mask.data();
    check_problem(problem, attention_scratch(problem.call));
  }
}

TEST_P(Attention, a_bool_mask_hides_keys_and_a_row_that_sees_none_is_zero) {
  std::vector<std::uint8_t> mask(2 * 9 * 21);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 21 < 13 - i / 21 % 13 ? 1 : 0;
  std::fill(mask.begin() + 3 * 21, mask.begin() + 4 * 21, std::uint8_t{0});
  for (const std::int64_t column_stride : {1, 9}) {
    Problem problem(2, 4, 4, 9, 21, 16, 16);
    problem.call.mask = {.kind = MaskKind::kBool,
                         .data = mask.data(),
                         .batch_stride = 9 * 21,
                         .row_stride = column_stride == 1 ? 21 : 1,
                         .column_stride = column_stride};
    check_problem(problem, attention_scratch(problem.call));
  }
}

TEST_P(Attention, minus_infinity_in_a_float_mask_hides_a_key) {
  std::vector<float> mask(9 * 21, 0.0F);
  std::fill(mask.begin() + 2 * 21, mask.begin() + 3 * 21, -std::numeric_limits<float>::infinity());
  Problem problem(1, 2, 2, 9, 21, 16, 16);
  problem.call.mask = {.kind = MaskKind::kAdditive, .data = mask.data(), .row_stride = 21, .column_stride = 1};
  check_problem(problem, attention_scratch(problem.call));
  for (std::size_t d = 0; d < 32; ++d) EXPECT_EQ(problem.output[2 * 32 + d], 0.0F);
}

TEST_P(Attention, causal_rows_see_the_keys_up_to_their_own) {
  for (const std::int64_t k_len : {5, 40, 300}) {
    Problem problem(1, 2, 2, 150, k_len, 8, 8);
    problem.call.causality = Causality::kCausal;
    check_problem(problem, attention_scratch(problem.call));
  }
}

TEST_P(Attention, query_heads_share_key_heads_in_groups) {
  Problem problem(2, 6, 2, 5, 12, 8, 8);
  check_problem(problem, attention_scratch(problem.call));
}

TEST_P(Attention, a_nan_propagates_only_to_its_row) {
  Problem problem(1, 1, 1, 3, 20, 8, 8);
  problem.q[8] = NAN;
  std::vector<float> scratch(attention_scratch(problem.call));
  ASSERT_TRUE(attention(problem.call, scratch).ok());
  for (std::size_t i = 0; i < problem.output.size(); ++i) EXPECT_EQ(std::isnan(problem.output[i]), i / 8 == 1) << i;
}

TEST_P(Attention, without_keys_the_output_is_zero) {
  Problem problem(1, 2, 2, 4, 0, 8, 8);
  check_problem(problem, attention_scratch(problem.call));
}

ACCORD_ON_EVERY_INSTRUCTION_SET(Attention);

TEST(AttentionCall, indivisible_head_counts_are_rejected) {
  Problem problem(1, 4, 4, 2, 2, 8, 8);
  problem.call.kv_heads = 3;
  std::vector<float> scratch(100);
  const Status status = attention(problem.call, scratch);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("3 key heads"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace accord::kernels
