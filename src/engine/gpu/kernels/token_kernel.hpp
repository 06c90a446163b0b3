#pragma once
// Chooses tokens from rows of logits, the same ones as Sampler. Nothing is sorted, and only integers are added up, so
// the order of the additions does not matter. Rows are read as Words if they consist of them.

#include <cmath>

#include "engine/gpu/kernels/units.hpp"
#include "engine/program/token_choice.hpp"
#include "engine/program/token_weight.hpp"

namespace accord::engine {

/// The arguments of ChooseTokens.
struct TokenChoices {
  const void* logits = nullptr;  ///< [rows, width]
  std::int64_t width = 0;        ///< < 2^31
  std::int64_t count = 0;
  const TokenChoice* choices = nullptr;
  std::uint32_t* weights = nullptr;  ///< [blocks, width]; not used if no choice has a temperature
  TokenId* tokens = nullptr;
};

/// Each block makes one choice. The limits of top_k and top_p are the largest numbers for which the elements at or
/// above them suffice; each pass over the row finds three bits of a limit. Cost: one pass for the best token; with a
/// temperature, 11 more each for top_k and top_p, and three others. Blocks need shared_bytes().
template <DType kDType>
struct ChooseTokens : TokenChoices {
  static constexpr const char* kName = kDType == DType::kFloat32   ? "engine_choose_tokens_float32"
                                       : kDType == DType::kFloat16 ? "engine_choose_tokens_float16"
                                                                   : "engine_choose_tokens_bfloat16";
  static constexpr int kThreads = 1024;
  /// One sum for each warp.
  static constexpr std::size_t shared_bytes() { return kThreads * sizeof(std::uint64_t); }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const bool in_words = WordCheck<kDType>().address(logits).elements(width).holds();
    for (std::int64_t i = block.block(); i < count; i += block.blocks()) {
      if (in_words) {
        choose<WordUnit<kDType>>(block, i);
      } else {
        choose<ElementUnit<kDType>>(block, i);
      }
    }
  }

 private:
  template <typename Unit, typename Block>
  ACCORD_ON_DEVICE void choose(Block& block, std::int64_t i) const {
    const TokenChoice choice = choices[i];
    std::uint64_t best = 0, has_non_finite = 0;
    for_logits<Unit>(block, choice, [&](std::int64_t t, float value) {
      const std::uint64_t place = std::uint64_t{order_of(value)} << 32 | ~static_cast<std::uint32_t>(t);
      best = place > best ? place : best;
      has_non_finite |= value < INFINITY ? 0 : 1;  // also for NaN
    });
    best = block.block_max(best);
    has_non_finite = block.block_max(has_non_finite);
    const auto best_token = static_cast<TokenId>(~static_cast<std::uint32_t>(best));
    const float best_logit = device::load_float(logits, kDType, choice.row * width + best_token);
    if (has_non_finite != 0 || best_logit == -INFINITY) {
      if (block.thread() == 0) tokens[i] = kNoToken;
    } else if (choice.temperature == 0.0F) {
      if (block.thread() == 0) tokens[i] = best_token;
    } else {
      draw<Unit>(block, choice, best_logit, tokens + i);
    }
  }

  /// Calls body(token, logit) for this thread's tokens.
  template <typename Unit, typename Block, typename Body>
  ACCORD_ON_DEVICE void for_logits(Block& block, const TokenChoice& choice, const Body& body) const {
    const auto* const row = units_at<Unit>(logits, choice.row * width);
    const auto units = static_cast<int>(width / Unit::kCount);
    ACCORD_UNROLLED_BY(2)
    for (int unit = block.thread(); unit < units; unit += block.threads()) {
      float values[Unit::kCount];
      Unit::load(row[unit], values);
      ACCORD_UNROLLED
      for (int k = 0; k < Unit::kCount; ++k) body(std::int64_t{unit} * Unit::kCount + k, values[k]);
    }
  }
  /// Calls body(weight) for this thread's tokens.
  template <typename Block, typename Body>
  ACCORD_ON_DEVICE void for_weights(Block& block, const std::uint32_t* row_weights, const Body& body) const {
    const std::int64_t words = width % 4 == 0 ? width / 4 : 0;
    for (std::int64_t word = block.thread(); word < words; word += block.threads()) {
      const Words four = reinterpret_cast<const Words*>(row_weights)[word];
      ACCORD_UNROLLED
      for (int k = 0; k < 4; ++k) body(four.of[k]);
    }
    for (std::int64_t t = 4 * words + block.thread(); t < width; t += block.threads()) body(row_weights[t]);
  }
  /// Maps floats to integers in the same order. Both zeros map to the same integer.
  ACCORD_ON_DEVICE static std::uint32_t order_of(float value) {
    const std::uint32_t bits = value == 0.0F ? 0U : device::bits_of(value);
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }

  /// Returns the largest number for which suffices(sum of the mass of all tokens whose key is at least the number).
  /// for_each(body) calls body(key, mass) for this thread's tokens. suffices() must be true for number 0, and never for
  /// an empty sum.
  template <typename Block, typename ForEach, typename Suffices>
  ACCORD_ON_DEVICE static std::uint32_t threshold(Block& block, ForEach for_each, Suffices suffices) {
    constexpr int kBits = 3, kSteps = (1 << kBits) - 1;
    std::uint64_t limit = 0;
    for (int shift = 30; shift >= 0; shift -= kBits) {
      std::uint64_t sums[kSteps] = {};  // sums[i]: over keys >= limit + (i + 1) * 2^shift
      for_each([&](std::uint64_t key, std::uint64_t mass) {
        if (key < limit) return;
        const std::uint64_t steps = (key - limit) >> shift;
        ACCORD_UNROLLED
        for (int i = 0; i < kSteps; ++i) sums[i] += steps > static_cast<std::uint64_t>(i) ? mass : 0;
      });
      std::uint64_t found = 0;
      ACCORD_UNROLLED
      for (int i = 0; i < kSteps; ++i) found += suffices(block.block_sum(sums[i])) ? 1 : 0;
      limit += found << shift;
    }
    return static_cast<std::uint32_t>(limit);
  }

  template <typename Unit, typename Block>
  ACCORD_ON_DEVICE void draw(Block& block, const TokenChoice& choice, float best, TokenId* token) const {
    std::uint32_t* const row_weights = weights + block.block() * width;
    std::uint32_t min_order = 0;
    if (choice.top_k > 0 && choice.top_k < width) {
      min_order = threshold(
          block,
          [&](const auto& body) {
            for_logits<Unit>(block, choice, [&](std::int64_t, float value) { body(order_of(value), 1); });
          },
          [&](std::uint64_t sum) { return sum >= static_cast<std::uint64_t>(choice.top_k); });
    }
    std::uint64_t mass = 0;
    for_logits<Unit>(block, choice, [&](std::int64_t t, float value) {
      const std::uint32_t weight = order_of(value) >= min_order ? weight_of(value, best, choice.temperature) : 0;
      row_weights[t] = weight;
      mass += weight;
    });
    std::uint32_t limit = choice.min_weight;
    if (choice.top_p < 1.0F) {
      const double wanted = static_cast<double>(choice.top_p) * static_cast<double>(block.block_sum(mass));
      block.sync();  // the words hold weights of other threads
      const std::uint32_t nucleus = threshold(
          block,
          [&](const auto& body) {
            for_weights(block, row_weights, [&](std::uint32_t weight) { body(weight, weight); });
          },
          [&](std::uint64_t sum) { return sum > 0 && static_cast<double>(sum) >= wanted; });
      limit = nucleus > limit ? nucleus : limit;
    }
    block.sync();
    find_token(block, row_weights, limit, choice.random, token);
  }

  /// Finds the token that the random number hits, in the order of tokens. Each warp has a range of tokens.
  template <typename Block>
  ACCORD_ON_DEVICE void find_token(Block& block, const std::uint32_t* row_weights, std::uint32_t limit,
                                   std::uint64_t random, TokenId* token) const {
    auto* const sums = reinterpret_cast<std::uint64_t*>(block.shared());
    const int lanes = block.lanes(), warps = block.threads() / lanes, warp = block.thread() / lanes;
    const std::int64_t turns = (width + block.threads() - 1) / block.threads(), range = turns * lanes;
    const std::int64_t first = warp * range;
    const auto weight = [&](std::int64_t t) {
      return t < width && row_weights[t] >= limit ? std::uint64_t{row_weights[t]} : 0;
    };
    std::uint64_t sum = 0;
    for (std::int64_t t = first + block.lane(); t < first + range; t += lanes) sum += weight(t);
    sum = block.warp_sum(sum);
    if (block.lane() == 0) sums[warp] = sum;
    block.sync();
    std::uint64_t mass = 0;
    for (int i = 0; i < warps; ++i) mass += sums[i];
    std::uint64_t left = high_half(random, mass);
    int found_warp = 0;
    while (left >= sums[found_warp]) left -= sums[found_warp++];
    if (warp == found_warp) {
      for (std::int64_t t = first;; t += lanes) {
        const std::uint64_t mine = weight(t + block.lane()), all = block.warp_sum(mine);
        if (left >= all) {
          left -= all;
          continue;
        }
        int lane = 0;
        for (std::uint64_t other = block.from_lane(mine, 0); left >= other; other = block.from_lane(mine, ++lane))
          left -= other;
        if (block.lane() == 0) *token = static_cast<TokenId>(t + lane);
        break;
      }
    }
    block.sync();  // before the sums are overwritten
  }

  /// Returns a * b / 2^64.
  ACCORD_ON_DEVICE static std::uint64_t high_half(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{a} * b) >> 64);
#endif
  }
};

}  // namespace accord::engine
