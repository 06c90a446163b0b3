#pragma once
// Attention whose tokens are divided into parts, which different blocks compute. The block that finishes last combines
// the results of all of them, so no second kernel follows.

#include <cmath>

#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

/// The minimum tokens of a part, except the last part: two for each thread of a block with the fewest threads.
inline constexpr int kMinPartTokens = 256;
/// Parts begin at multiples of this many tokens, counted from the first one.
inline constexpr int kPartStep = 64;

/// How the tokens [first, last) that a row sees are divided into parts.
struct ContextParts {
  int first = 0, last = 0;
  int each = 1;   ///< tokens of a part, but the last one may have fewer
  int count = 1;  ///< parts. Each has a token
  /// For the tokens [from, to). `most`: the largest number of parts.
  ACCORD_ON_DEVICE ContextParts(int from, int to, int most) : first(from), last(to) {
    const int seen = last - first, even = ((seen + most - 1) / most + kPartStep - 1) / kPartStep * kPartStep;
    each = even > kMinPartTokens ? even : kMinPartTokens;
    count = (seen + each - 1) / each;
  }
  ACCORD_ON_DEVICE int begin(int part) const { return first + part * each; }
  ACCORD_ON_DEVICE int end(int part) const { return part + 1 < count ? first + (part + 1) * each : last; }
};

/// Where the blocks of the same queries store the results of their parts.
struct PartResults {
  float* data = nullptr;             ///< [part][query][floats(value_dim)], aligned to 16 bytes
  std::uint64_t* arrived = nullptr;  ///< parts that are finished; 0 before the first and after the last one
  int parts = 1, queries = 1;
  int queries_each = 1;  ///< queries that there is room for in a part
  int value_dim = 0;

  struct alignas(16) Four {
    float of[4];
  };
  /// The size of a query's result: its sums, in whole Fours, and one Four with its total and maximum score. The sums
  /// are undefined where the total is 0.
  ACCORD_ON_DEVICE static constexpr int floats(int value_dim) { return (value_dim + 3) / 4 * 4 + 4; }
  /// Shared memory that finish_part() uses.
  static constexpr std::size_t shared_bytes(std::int64_t queries, std::int64_t parts) {
    return static_cast<std::size_t>(queries * parts) * sizeof(float);
  }

  ACCORD_ON_DEVICE float* sums(int part, int query) const {
    return data + (part * queries_each + query) * floats(value_dim);
  }
  /// The total of a query's softmax weights in a part, and its maximum score there.
  struct alignas(8) Total {
    float sum, max_score;
    /// Returns the factor of the part's sums relative to `of`, the maximum over all parts: 0 for a part without sums,
    /// but never for one with a NaN.
    ACCORD_ON_DEVICE float factor(float of) const {
      if (sum != sum) return sum;
      return sum == 0.0F ? 0.0F : expf(max_score - of);
    }
  };
  ACCORD_ON_DEVICE Total& total(int part, int query) const {
    return *reinterpret_cast<Total*>(sums(part, query) + floats(value_dim) - 4);
  }
};

/// Called by all threads of a block once they have stored the results of its part. The last of the blocks that share
/// `results` combines them: it calls store(query, d, value) for each element. Overwrites the block's shared memory.
template <typename Block, typename Store>
ACCORD_ON_DEVICE void finish_part(Block& block, const PartResults& results, const Store& store) {
  const auto parts = static_cast<std::uint64_t>(results.parts);
  block.sync();
  const bool is_last = block.thread() == 0 && block.add_acq_rel(results.arrived, 1) + 1 == parts;
  if (!block.any(is_last)) return;
  if (is_last) block.store(results.arrived, 0);  // for the next launch

  auto* const weights = reinterpret_cast<float*>(block.shared());  // [query][part]
  const int lanes = block.lanes(), lane = block.lane(), warps = block.threads() / lanes;
  for (int query = block.thread() / lanes; query < results.queries; query += warps) {
    float max_score = -INFINITY, total = 0.0F;
    for (int part = lane; part < results.parts; part += lanes) {
      const float score = results.total(part, query).max_score;
      max_score = score > max_score ? score : max_score;
    }
    max_score = block.warp_max(max_score);
    for (int part = lane; part < results.parts; part += lanes) {
      const PartResults::Total its = results.total(part, query);
      const float factor = its.factor(max_score);
      weights[query * results.parts + part] = factor;
      total += factor * its.sum;
    }
    total = block.warp_sum(total);
    for (int part = lane; part < results.parts; part += lanes) weights[query * results.parts + part] /= total;
  }
  block.sync();
  const int fours = (results.value_dim + 3) / 4;
  for (int i = block.thread(); i < results.queries * fours; i += block.threads()) {
    const int query = i / fours, d = i % fours * 4;
    PartResults::Four sum{};
    ACCORD_UNROLLED_BY(8)
    for (int part = 0; part < results.parts; ++part) {
      const float weight = weights[query * results.parts + part];
      const auto from = *reinterpret_cast<const PartResults::Four*>(results.sums(part, query) + d);
      ACCORD_UNROLLED
      for (int j = 0; j < 4; ++j)
        if (weight != 0.0F) sum.of[j] = multiply_add(weight, from.of[j], sum.of[j]);
    }
    for (int j = 0; j < 4 && d + j < results.value_dim; ++j) store(query, d + j, sum.of[j]);
  }
}

}  // namespace accord::engine
