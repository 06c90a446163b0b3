#pragma once
// One sequence for tests of paged attention, compared with a double-precision loop over its tokens.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "half_reference.hpp"
#include "kernels/attention/paged_attention.hpp"
#include "random_floats.hpp"

namespace accord::kernels {

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
  std::int64_t distances = 0;  // of biases; 0: none
  bool sees_all = false;       // every token attends to all tokens
};

// One sequence: the queries, keys and values of all its tokens, a cache that is larger than it needs, and its block
// table.
struct Sequence {
  Shape shape;
  std::vector<float> q, k, v, output, sinks, slopes, biases;
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
    biases = random_floats(static_cast<std::size_t>(shape.heads * shape.distances), 5);
    if (shape.distances > 0) call.biases = biases.data();
    call.distances = shape.distances;
    if (shape.sees_all) call.tokens_of_all = shape.tokens;
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
    for (std::int64_t other = first; other < (shape.sees_all ? shape.tokens : token + 1); ++other) {
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
      if (shape.distances > 0) {
        const std::int64_t place = head * shape.distances + std::min(token - other, shape.distances - 1);
        score += static_cast<double>(biases[static_cast<std::size_t>(place)]);
      }
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

}  // namespace accord::kernels
