// The k-th largest value of a row is not below the k-th largest of its blocks' maxima, so only blocks that reach that
// value need a second look: k of them, and those that tie. The first pass compares floats as integers that have the
// same order, which every compiler vectorizes.
#include "engine/serving/logits_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace accord::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int32_t kMagnitude = 0x7fffffff;
constexpr std::int32_t kInfinityBits = 0x7f800000;

// Maps the bits of floats to integers in the same order; its own inverse.
std::int32_t ordered(std::int32_t bits) { return bits ^ ((bits >> 31) & kMagnitude); }

struct BlockSummary {
  std::int32_t largest = std::numeric_limits<std::int32_t>::min();
  std::int32_t nan = 0;
};

BlockSummary summarize(const float* values, std::size_t count) {
  BlockSummary summary;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::int32_t>(values[i]);
    summary.largest = std::max(summary.largest, ordered(bits));
    summary.nan |= (bits & kMagnitude) > kInfinityBits ? 1 : 0;
  }
  return summary;
}

}  // namespace

Status LogitsRow::set(std::span<const float> row) {
  row_ = row;
  maxima_.clear();
  std::int32_t largest = std::numeric_limits<std::int32_t>::min();
  std::int32_t nan = 0;
  for (std::size_t first = 0; first < row.size(); first += kBlock) {
    const BlockSummary summary =
        first + kBlock <= row.size() ? summarize(&row[first], kBlock) : summarize(&row[first], row.size() - first);
    maxima_.push_back(std::bit_cast<float>(ordered(summary.largest)));
    largest = std::max(largest, summary.largest);
    nan |= summary.nan;
  }
  best_ = std::bit_cast<float>(ordered(largest));
  return nan != 0 || std::isinf(best_) ? error_status() : Status();
}

Status LogitsRow::error_status() const {
  const auto bad = std::ranges::find_if(row_, [](float value) { return std::isnan(value) || value == kInfinity; });
  if (bad == row_.end()) return Status(StatusCode::kInvalidArgument, "no token is allowed: all logits are -inf");
  return Status(StatusCode::kCorrupt, fmt::format("the logit of token {} is {}", bad - row_.begin(), *bad));
}

TokenId LogitsRow::best_token() const {
  const auto block = std::ranges::find(maxima_, best_) - maxima_.begin();
  const auto first = static_cast<std::size_t>(block) * kBlock;
  return static_cast<TokenId>(std::find(row_.begin() + static_cast<std::ptrdiff_t>(first), row_.end(), best_) -
                              row_.begin());
}

float LogitsRow::kth_largest(std::size_t k) {
  float min_value = -kInfinity;
  const auto index = static_cast<std::ptrdiff_t>(k) - 1;
  if (k <= maxima_.size()) {
    candidates_.assign(maxima_.begin(), maxima_.end());
    std::nth_element(candidates_.begin(), candidates_.begin() + index, candidates_.end(), std::greater<>());
    min_value = candidates_[k - 1];
  }
  candidates_.clear();
  for (std::size_t block = 0; block < maxima_.size(); ++block) {
    if (maxima_[block] < min_value) continue;
    const std::size_t first = block * kBlock;
    for (const float value : row_.subspan(first, std::min(kBlock, row_.size() - first)))
      if (value >= min_value) candidates_.push_back(value);
  }
  std::nth_element(candidates_.begin(), candidates_.begin() + index, candidates_.end(), std::greater<>());
  return candidates_[k - 1];
}

void LogitsRow::collect(float min_value, std::vector<TokenId>& tokens) const {
  tokens.clear();
  for (std::size_t block = 0; block < maxima_.size(); ++block) {
    if (maxima_[block] < min_value) continue;
    const std::size_t first = block * kBlock;
    for (std::size_t i = first; i < std::min(first + kBlock, row_.size()); ++i)
      if (row_[i] >= min_value) tokens.push_back(static_cast<TokenId>(i));
  }
}

}  // namespace accord::engine
