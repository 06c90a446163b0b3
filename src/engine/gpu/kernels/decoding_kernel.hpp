#pragma once
// Attention of single rows over the paged cache, as when a language model decodes. Keys and values are read once, at
// the speed of memory.
//
// Each block has one row, up to kQueries query heads of one key head, and one part of the tokens that the row sees.
// Its warps take turns with the tokens of the part, as many tokens at a time as a warp has lanes:
//   1. each lane looks up the cache row of one token, one turn ahead;
//   2. scores: several lanes share a token's key, one word each, and read the words of several tokens before they use
//      the first;
//   3. a softmax that is corrected whenever a larger score appears (Milakov, Gimelshein 2018), one token per lane;
//   4. sums of values, read in words like the keys. Each lane keeps its own sums in shared memory.
// The warps synchronize once, at the end, to add up the sums of their lanes.

#include <algorithm>
#include <type_traits>

#include "engine/gpu/kernels/attention_kernels.hpp"

namespace accord::engine {

/// 8 int8 codes.
struct alignas(8) EightCodes {
  std::uint32_t of[2];
};

/// PagedCall over a cache of kDType, float32, bfloat16 or int8, whose rows of keys and of values are whole words. A
/// word of int8 is 8 codes, so that a lane has as many sums as with bfloat16.
template <DType kDType, int kQueries>
struct DecodingAttention : PagedCall {
  static constexpr bool kIsCodes = kDType == DType::kInt8;
  using Word = std::conditional_t<kIsCodes, EightCodes, Words>;
  static constexpr const char* name_of(const char* float32, const char* bfloat16, const char* int8) {
    return kIsCodes ? int8 : kDType == DType::kFloat32 ? float32 : bfloat16;
  }
  static constexpr const char* kName =
      kQueries == 1
          ? name_of("engine_decode_1_head_float32", "engine_decode_1_head_bfloat16", "engine_decode_1_head_int8")
      : kQueries == 4
          ? name_of("engine_decode_4_heads_float32", "engine_decode_4_heads_bfloat16", "engine_decode_4_heads_int8")
          : name_of("engine_decode_8_heads_float32", "engine_decode_8_heads_bfloat16", "engine_decode_8_heads_int8");
  static constexpr int kThreads = 256, kMinBlocks = 2;
  static constexpr bool kStartsEarly = true;
  static constexpr int kEach = kIsCodes ? 8 : kElementsOfWords<kDType>;

  /// Key heads with more than kQueries query heads are divided among several blocks.
  ACCORD_ON_DEVICE std::int64_t groups() const { return (heads_per_kv_head() + kQueries - 1) / kQueries; }
  ACCORD_ON_DEVICE std::int64_t works() const { return rows * cache.kv_heads * groups() * parts_each(rows); }

  /// For blocks of `threads` threads, in warps of `lanes`.
  static std::size_t shared_bytes(std::int64_t head_dim, std::int64_t value_dim, int most_parts, int threads = kThreads,
                                  int lanes = 32) {
    const int words = static_cast<int>(value_dim) / kEach, width = width_of(words, lanes);
    const int turns = (words + width - 1) / width;
    const std::int64_t floats = kQueries * (head_dim + threads * (turns * kEach + 1) + threads / lanes * 2);
    return std::max(static_cast<std::size_t>(floats) * sizeof(float), PartResults::shared_bytes(kQueries, most_parts));
  }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const int most = parts_each(rows);
    for (std::int64_t work = block.block(); work < works(); work += block.blocks()) {
      Part part;
      std::int64_t rest = work;
      part.number = static_cast<int>(take_last(rest, most));
      part.group = rest;
      const std::int64_t heads_part = take_last(rest, groups());
      part.kv_head = take_last(rest, cache.kv_heads);
      part.row = rest;
      part.head = part.kv_head * heads_per_kv_head() + heads_part * kQueries;
      const std::int64_t left = heads_per_kv_head() - heads_part * kQueries;
      part.queries = static_cast<int>(left < kQueries ? left : kQueries);
      const RowPlace place = batch.rows[part.row];
      if (!computes(place)) continue;
      part.table = batch.tables + place.table;
      const ContextParts parts(first_seen(place.token), place.token + 1, most);
      part.parts = parts.count;
      part.begin = parts.begin(part.number);
      part.end = parts.end(part.number);
      if (part.number < parts.count) attend(block, part);
    }
  }

 private:
  static constexpr int kFours = kEach / 4;
  static constexpr int kWordsAtOnce = kQueries > 1 ? 4 : 8;  // words that a lane reads before it uses the first

  struct Part {
    std::int64_t group = 0, row = 0, kv_head = 0, head = 0;
    int queries = 0, number = 0, parts = 1;
    const std::int32_t* table = nullptr;
    std::int64_t begin = 0, end = 0;
  };
  struct alignas(16) Four {
    float of[4];
  };
  /// One number for each query.
  struct alignas(kQueries < 4 ? 4 : 16) Numbers {
    float of[kQueries];
  };
  ACCORD_ON_DEVICE static float number_of(const Word& word, int i) {
    if constexpr (kIsCodes) {
      return static_cast<float>(static_cast<std::int8_t>(word.of[i / 4] >> (i % 4 * 8)));
    } else {
      return element_of<kDType>(word, i);
    }
  }
  /// Returns how many lanes of a warp share a token.
  ACCORD_ON_DEVICE static constexpr int width_of(int words, int lanes) {
    int width = 1;
    while (width * 2 <= words && lanes % (width * 2) == 0) width *= 2;
    return width;
  }

  /// A thread's place in its warp and the layout of its block's shared memory.
  struct Thread {
    int lane, lanes, warp, warps;
    int key_words, key_width, value_words, value_stride, value_width, value_turns;  ///< the stride is in words
    float* q;                                                                       ///< [query, group of four, word, 4]
    float* sums;      ///< [warp, turn, query, group of four, lane, 4]
    Numbers* scores;  ///< of this warp's tokens
    float* merged;    ///< [warp, query]: maximum score and total
    template <typename Block>
    ACCORD_ON_DEVICE Thread(Block& block, const DeviceCacheLayer& cache)
        : lane(block.lane()), lanes(block.lanes()), warp(block.thread() / lanes), warps(block.threads() / lanes) {
      key_words = static_cast<int>(cache.head_dim) / kEach;
      value_words = static_cast<int>(cache.value_dim) / kEach;
      value_stride = static_cast<int>(cache.value_stride()) / kEach;
      key_width = width_of(key_words, lanes);
      value_width = width_of(value_words, lanes);
      value_turns = (value_words + value_width - 1) / value_width;
      q = reinterpret_cast<float*>(block.shared());
      sums = q + kQueries * key_words * kEach;
      float* const all_scores = sums + warps * value_turns * kQueries * lanes * kEach;
      scores = reinterpret_cast<Numbers*>(all_scores) + warp * lanes;
      merged = all_scores + warps * lanes * kQueries;
    }
    ACCORD_ON_DEVICE Four& query(int query, int four, int word) const {
      return reinterpret_cast<Four*>(q)[(query * kFours + four) * key_words + word];
    }
    ACCORD_ON_DEVICE Four& sum(int of_warp, int turn, int query, int four, int of_lane) const {
      return reinterpret_cast<Four*>(
          sums)[(((of_warp * value_turns + turn) * kQueries + query) * kFours + four) * lanes + of_lane];
    }
  };

  template <typename Block>
  ACCORD_ON_DEVICE void attend(Block& block, const Part& part) const {
    const Thread at(block, cache);
    block.sync();  // the previous contents may still be in use
    const auto head_dim = static_cast<int>(cache.head_dim);
    for (int i = block.thread(); i < kQueries * head_dim; i += block.threads()) {
      const int query = i / head_dim, d = i % head_dim;
      at.query(query, d % kEach / 4, d / kEach).of[d % 4] =
          query < part.queries ? q.at(part.row, part.head + query, d) : 0.0F;
    }
    for (int i = 0; i < at.value_turns * kQueries * kFours; ++i) at.sum(at.warp, 0, 0, i, at.lane) = Four{};
    block.sync();

    Numbers max_score, total = {}, correction;  // `total` covers this lane's tokens only
    ACCORD_UNROLLED
    for (int query = 0; query < kQueries; ++query) max_score.of[query] = -INFINITY;
    const auto row_of_mine = [&](std::int64_t first) {
      const std::int64_t token = first + at.lane;
      return token < part.end ? cache.row_of(part.table, part.kv_head, token) : 0;
    };
    const int stride = at.warps * at.lanes;
    std::int64_t first = part.begin + at.warp * at.lanes;
    for (std::int64_t next = row_of_mine(first); first < part.end; first += stride) {
      const std::int64_t row = next, left = part.end - first;
      next = row_of_mine(first + stride);
      const int tokens = left < at.lanes ? static_cast<int>(left) : at.lanes;
      score(block, at, row, tokens);
      block.sync_warp();
      update_softmax(block, at, row, tokens, max_score, total, correction);
      block.sync_warp();
      add_values(block, at, row, tokens, correction);
      block.sync_warp();
    }
    ACCORD_UNROLLED
    for (int query = 0; query < kQueries; ++query) {
      const float all = block.warp_sum(total.of[query]);
      if (at.lane != 0) continue;
      float* const to = at.merged + (at.warp * kQueries + query) * 2;
      to[0] = max_score.of[query];
      to[1] = all;
    }
    block.sync();
    store_results(block, at, part);
  }

  /// Multiplies the queries with the keys of `tokens` tokens. `row`: the cache row of this lane's token.
  template <typename Block>
  ACCORD_ON_DEVICE void score(Block& block, const Thread& at, std::int64_t row, int tokens) const {
    const int at_once = at.lanes / at.key_width, mine = at.lane % at.key_width;
    ACCORD_UNROLLED_BY(1)
    for (int round = 0; round * at_once < tokens; round += kWordsAtOnce) {
      const Word* keys[kWordsAtOnce];
      Numbers products[kWordsAtOnce] = {};
      int token[kWordsAtOnce];
      ACCORD_UNROLLED
      for (int i = 0; i < kWordsAtOnce; ++i) {
        token[i] = (round + i) * at_once + at.lane / at.key_width;
        const std::int64_t token_row = block.from_lane(row, token[i] % at.lanes);
        keys[i] = static_cast<const Word*>(cache.keys) + token_row * at.key_words;
      }
      ACCORD_UNROLLED_BY(1)
      for (int word = mine; word < at.key_words; word += at.key_width) {
        Word k[kWordsAtOnce];
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce; ++i) k[i] = token[i] < tokens ? keys[i][word] : Word{};
        ACCORD_UNROLLED
        for (int four = 0; four < kFours; ++four) {
          ACCORD_UNROLLED
          for (int query = 0; query < kQueries; ++query) {
            const Four x = at.query(query, four, word);
            ACCORD_UNROLLED
            for (int i = 0; i < kWordsAtOnce; ++i) {
              ACCORD_UNROLLED
              for (int d = 0; d < 4; ++d)
                products[i].of[query] = multiply_add(number_of(k[i], four * 4 + d), x.of[d], products[i].of[query]);
            }
          }
        }
      }
      for (int other = at.key_width / 2; other > 0; other /= 2) {
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce; ++i) {
          ACCORD_UNROLLED
          for (int query = 0; query < kQueries; ++query)
            products[i].of[query] += block.from_lane(products[i].of[query], at.lane ^ other);
        }
      }
      ACCORD_UNROLLED
      for (int i = 0; i < kWordsAtOnce; ++i)
        if (mine == 0 && token[i] < tokens) at.scores[token[i]] = products[i];
    }
  }

  /// Turns the products into softmax weights, times the scales of values stored as codes. Sets `correction` to the
  /// factor by which earlier sums must be multiplied.
  template <typename Block>
  ACCORD_ON_DEVICE void update_softmax(Block& block, const Thread& at, std::int64_t row, int tokens, Numbers& max_score,
                                       Numbers& total, Numbers& correction) const {
    Numbers mine = {};
    if (at.lane < tokens) mine = at.scores[at.lane];
    const bool has_scales = kIsCodes && at.lane < tokens;
    const float key_scale = has_scales ? cache.key_scales[row] : 1.0F;
    const float value_scale = has_scales ? cache.value_scales[row] : 1.0F;
    ACCORD_UNROLLED
    for (int query = 0; query < kQueries; ++query) {
      float score = kIsCodes ? mine.of[query] * key_scale * scale : mine.of[query] * scale;
      if (softcap > 0.0F) score = softcap * tanhf(score / softcap);
      if (at.lane >= tokens) score = -INFINITY;
      const float largest = block.warp_max(score), before = max_score.of[query];
      const float new_max = largest > before ? largest : before;
      correction.of[query] = new_max == before ? 1.0F : expf(before - new_max);
      mine.of[query] = score == -INFINITY ? 0.0F : expf(score - new_max);
      max_score.of[query] = new_max;
      total.of[query] = multiply_add(total.of[query], correction.of[query], mine.of[query]);
      if (kIsCodes) mine.of[query] *= value_scale;
    }
    at.scores[at.lane] = mine;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void add_values(Block& block, const Thread& at, std::int64_t row, int tokens,
                                   const Numbers& correction) const {
    const int at_once = at.lanes / at.value_width;
    ACCORD_UNROLLED_BY(1)
    for (int turn = 0; turn < at.value_turns; ++turn) {
      const int word = turn * at.value_width + at.lane % at.value_width;
      Four sums[kQueries][kFours];
      ACCORD_UNROLLED
      for (int query = 0; query < kQueries; ++query) {
        ACCORD_UNROLLED
        for (int four = 0; four < kFours; ++four) {
          sums[query][four] = at.sum(at.warp, turn, query, four, at.lane);
          ACCORD_UNROLLED
          for (int d = 0; d < 4; ++d) sums[query][four].of[d] *= correction.of[query];
        }
      }
      ACCORD_UNROLLED_BY(1)
      for (int round = 0; round * at_once < tokens; round += kWordsAtOnce) {
        Word v[kWordsAtOnce];
        int token[kWordsAtOnce];
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce; ++i) {
          const int number = (round + i) * at_once + at.lane / at.value_width;
          token[i] = number % at.lanes;
          const std::int64_t token_row = block.from_lane(row, token[i]);
          v[i] = number < tokens && word < at.value_words
                     ? (static_cast<const Word*>(cache.values) + token_row * at.value_stride)[word]
                     : Word{};
        }
        ACCORD_UNROLLED
        for (int i = 0; i < kWordsAtOnce; ++i) {
          const Numbers factor = at.scores[token[i]];
          ACCORD_UNROLLED
          for (int query = 0; query < kQueries; ++query) {
            ACCORD_UNROLLED
            for (int d = 0; d < kEach; ++d) {
              float& sum = sums[query][d / 4].of[d % 4];
              sum = multiply_add(factor.of[query], number_of(v[i], d), sum);
            }
          }
        }
      }
      ACCORD_UNROLLED
      for (int query = 0; query < kQueries; ++query) {
        ACCORD_UNROLLED
        for (int four = 0; four < kFours; ++four) at.sum(at.warp, turn, query, four, at.lane) = sums[query][four];
      }
    }
  }

  ACCORD_ON_DEVICE void store(const Part& part, int query, int d, float x) const {
    device::store_float(output.data, output.dtype,
                        part.row * output.row_stride + (part.head + query) * output.head_stride + d, x);
  }

  /// Combines the results of all lanes and warps, and stores the output or the result of a part.
  template <typename Block>
  ACCORD_ON_DEVICE void store_results(Block& block, const Thread& at, const Part& part) const {
    const auto dim = static_cast<int>(cache.value_dim);
    PartResults results = results_of(part.group, parts_each(rows), kQueries);
    results.parts = part.parts;
    results.queries = part.queries;
    for (int i = block.thread(); i < part.queries * dim; i += block.threads()) {
      const int query = i / dim, d = i % dim, word = d / kEach;
      float max_score = -INFINITY, sum = 0.0F, total = 0.0F;
      for (int warp = 0; warp < at.warps; ++warp) {
        const float score = at.merged[(warp * kQueries + query) * 2];
        max_score = score > max_score ? score : max_score;
      }
      for (int warp = 0; warp < at.warps; ++warp) {
        const float* const merged = at.merged + (warp * kQueries + query) * 2;
        const float factor = merged[0] == -INFINITY ? 0.0F : expf(merged[0] - max_score);
        float of_lanes = 0.0F;
        for (int lane = word % at.value_width; lane < at.lanes; lane += at.value_width)
          of_lanes += at.sum(warp, word / at.value_width, query, d % kEach / 4, lane).of[d % 4];
        sum += of_lanes * factor;
        total += merged[1] * factor;
      }
      if (part.parts == 1) {
        store(part, query, d, sum / total);
        continue;
      }
      results.sums(part.number, query)[d] = sum;
      if (d == 0) results.total(part.number, query) = {total, max_score};
    }
    if (part.parts == 1) return;
    finish_part(block, results, [&](int query, int d, float x) { store(part, query, d, x); });
  }
};

}  // namespace accord::engine
