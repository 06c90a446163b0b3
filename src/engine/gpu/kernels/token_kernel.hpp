#pragma once
// Chooses tokens from rows of logits, the same ones as Sampler. Nothing is sorted, and only integers are added up, so
// the order of the additions does not matter.

#include <cmath>

#include "engine/gpu/kernels/words.hpp"
#include "engine/program/token_choice.hpp"
#include "engine/program/token_weight.hpp"

namespace accord::engine {

/// Each block makes one choice. The limits of top_k and top_p are the largest numbers for which the elements at or
/// above them suffice; each pass over the row finds three bits of a limit. Cost: one pass for the best token; with a
/// temperature, 11 more each for top_k and top_p, and three others. Blocks need shared_bytes().
struct ChooseTokens {
  static constexpr const char* kName = "engine_choose_tokens";
  static constexpr int kThreads = 1024;
  /// One sum for each warp.
  static constexpr std::size_t shared_bytes() { return kThreads * sizeof(std::uint64_t); }

  const void* logits = nullptr;  ///< [rows, width]
  DType dtype = DType::kFloat32;
  std::int64_t width = 0;  ///< < 2^31
  std::int64_t count = 0;
  const TokenChoice* choices = nullptr;
  std::uint32_t* weights = nullptr;  ///< [blocks, width]; not used if no choice has a temperature
  TokenId* tokens = nullptr;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::int64_t i = block.block(); i < count; i += block.blocks()) {
      const TokenChoice choice = choices[i];
      std::uint64_t best = 0, has_non_finite = 0;
      for (std::int64_t t = block.thread(); t < width; t += block.threads()) {
        const float value = at(choice, t);
        const std::uint64_t place = std::uint64_t{order_of(value)} << 32 | ~static_cast<std::uint32_t>(t);
        best = place > best ? place : best;
        has_non_finite |= value < INFINITY ? 0 : 1;  // also for NaN
      }
      best = block.block_max(best);
      has_non_finite = block.block_max(has_non_finite);
      const auto best_token = static_cast<TokenId>(~static_cast<std::uint32_t>(best));
      if (has_non_finite != 0 || at(choice, best_token) == -INFINITY) {
        if (block.thread() == 0) tokens[i] = kNoToken;
      } else if (choice.temperature == 0.0F) {
        if (block.thread() == 0) tokens[i] = best_token;
      } else {
        draw(block, choice, at(choice, best_token), tokens + i);
      }
    }
  }

 private:
  ACCORD_ON_DEVICE float at(const TokenChoice& choice, std::int64_t token) const {
    return device::load_float(logits, dtype, choice.row * width + token);
  }
  /// Maps floats to integers in the same order. Both zeros map to the same integer.
  ACCORD_ON_DEVICE static std::uint32_t order_of(float value) {
    const std::uint32_t bits = value == 0.0F ? 0U : device::bits_of(value);
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }

  /// Returns the largest number for which suffices(sum of mass(t) over all t with key(t) >= number). suffices() must
  /// be true for number 0, and never for an empty sum.
  template <typename Block, typename Key, typename Mass, typename Suffices>
  ACCORD_ON_DEVICE std::uint32_t threshold(Block& block, Key key, Mass mass, Suffices suffices) const {
    constexpr int kBits = 3, kSteps = (1 << kBits) - 1;
    std::uint64_t limit = 0;
    for (int shift = 30; shift >= 0; shift -= kBits) {
      std::uint64_t sums[kSteps] = {};  // sums[i]: over keys >= limit + (i + 1) * 2^shift
      for (std::int64_t t = block.thread(); t < width; t += block.threads()) {
        const std::uint64_t number = key(t);
        if (number < limit) continue;
        const std::uint64_t steps = (number - limit) >> shift, token_mass = mass(t);
        ACCORD_UNROLLED
        for (int i = 0; i < kSteps; ++i) sums[i] += steps > static_cast<std::uint64_t>(i) ? token_mass : 0;
      }
      std::uint64_t found = 0;
      ACCORD_UNROLLED
      for (int i = 0; i < kSteps; ++i) found += suffices(block.block_sum(sums[i])) ? 1 : 0;
      limit += found << shift;
    }
    return static_cast<std::uint32_t>(limit);
  }

  template <typename Block>
  ACCORD_ON_DEVICE void draw(Block& block, const TokenChoice& choice, float best, TokenId* token) const {
    std::uint32_t* const row_weights = weights + block.block() * width;
    std::uint32_t min_order = 0;
    if (choice.top_k > 0 && choice.top_k < width) {
      min_order = threshold(
          block, [&](std::int64_t t) { return order_of(at(choice, t)); }, [](std::int64_t) { return 1; },
          [&](std::uint64_t sum) { return sum >= static_cast<std::uint64_t>(choice.top_k); });
    }
    std::uint64_t mass = 0;
    for (std::int64_t t = block.thread(); t < width; t += block.threads()) {
      const float value = at(choice, t);
      row_weights[t] = order_of(value) >= min_order ? weight_of(value, best, choice.temperature) : 0;
      mass += row_weights[t];
    }
    std::uint32_t limit = choice.min_weight;
    if (choice.top_p < 1.0F) {
      const double wanted = static_cast<double>(choice.top_p) * static_cast<double>(block.block_sum(mass));
      const std::uint32_t nucleus = threshold(
          block, [&](std::int64_t t) { return row_weights[t]; }, [&](std::int64_t t) { return row_weights[t]; },
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
