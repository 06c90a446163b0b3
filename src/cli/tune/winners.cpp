// The rounds of a point are pairs: a candidate's round and the default's were measured one after the other, so their
// ratio does not depend on what else the machine did. A candidate that is only as good as the default is not worth a
// rule.
#include "cli/tune/winners.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/text.hpp"
#include "cli/plan/commands.hpp"

namespace accord::cli {
namespace {

constexpr double kWorthwhile = 1.05;
constexpr std::size_t kNoEnd = std::numeric_limits<std::size_t>::max();

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Speed relative to the default, by round.
std::vector<double> gains(const Timing& by_default, const Timing& other) {
  std::vector<double> gains;
  for (std::size_t i = 0; i < std::min(by_default.rounds.size(), other.rounds.size()); ++i)
    gains.push_back(by_default.rounds[i] / other.rounds[i]);
  return gains;
}

bool is_worthwhile(const std::vector<double>& gains) {
  const auto losses = std::count_if(gains.begin(), gains.end(), [](double gain) { return gain <= 1; });
  return median(gains) >= kWorthwhile && losses <= 1;
}

// The power of two nearest to the geometric mean of two sizes.
std::size_t between(std::size_t below, std::size_t above) {
  const double middle = std::sqrt(static_cast<double>(std::max<std::size_t>(below, 1)) * static_cast<double>(above));
  const std::size_t power = std::bit_floor(static_cast<std::size_t>(middle));
  return std::max(middle / static_cast<double>(power) < std::sqrt(2.0) ? power : 2 * power, below + 1);
}

// A size as in a table: "4k", "inf".
std::string size_text(std::size_t bytes) {
  if (bytes == kNoEnd) return "inf";
  for (const auto& [shift, unit] : {std::pair{30, 'g'}, {20, 'm'}, {10, 'k'}})
    if (bytes > 0 && bytes % (std::size_t{1} << shift) == 0) return fmt::format("{}{}", bytes >> shift, unit);
  return fmt::format("{}", bytes);
}

std::string measured_text(const TunedRange& range) {
  // The size with the largest gain represents the range.
  const Winner& best = *std::max_element(range.winners.begin(), range.winners.end(),
                                         [](const Winner& a, const Winner& b) { return a.gain < b.gain; });
  const bool is_default = best.candidate == "default";
  const std::string at = best.bytes == 0 ? "" : fmt::format(" at {}", bytes_text(best.bytes));
  if (is_default) return fmt::format("{}{}", time_text(best.default_seconds), at);
  return fmt::format("{}{}, by default {}: {:.2f} x", time_text(best.seconds), at, time_text(best.default_seconds),
                     best.gain);
}

}  // namespace

double seconds_of(const Timing& timing) { return median(timing.rounds); }

Winner winner_of(const TunedPoint& point) {
  const Timing& by_default = point.timings.front();
  const double default_seconds = seconds_of(by_default);
  Winner winner{.bytes = point.bytes, .seconds = default_seconds, .default_seconds = default_seconds};
  for (const Timing& timing : point.timings) {
    const double seconds = seconds_of(timing);
    const std::vector<double> better = gains(by_default, timing);
    if (timing.candidate == "default" || seconds >= winner.seconds || !is_worthwhile(better)) continue;
    winner.candidate = timing.candidate;
    winner.seconds = seconds;
    winner.gain = median(better);
  }
  return winner;
}

std::vector<TunedRange> ranges_of(const std::vector<TunedPoint>& points) {
  std::vector<TunedRange> ranges;
  for (const TunedPoint& point : points) {
    const Winner winner = winner_of(point);
    if (!ranges.empty() && ranges.back().winners.back().candidate == winner.candidate) {
      ranges.back().winners.push_back(winner);
      continue;
    }
    const std::size_t from = ranges.empty() ? 0 : between(ranges.back().winners.back().bytes, point.bytes);
    if (!ranges.empty()) ranges.back().to_bytes = from;
    ranges.push_back({.from_bytes = from, .to_bytes = kNoEnd, .winners = {winner}});
  }
  return ranges;
}

std::string rules_text(const TunedCollective& tuned) {
  const std::string_view name = tuned.operation->name;
  std::string text;
  for (const TunedRange& range : ranges_of(tuned.points)) {
    const std::string& candidate = range.winners.front().candidate;
    const std::string sizes = fmt::format("{}-{}", size_text(range.from_bytes), size_text(range.to_bytes));
    const std::string rule = candidate == "default"
                                 ? fmt::format("# {}{}:{} as by default", name, tuned.conditions, sizes)
                                 : fmt::format("{}{}:{}={};", name, tuned.conditions, sizes, candidate);
    text += fmt::format("{}  # {}\n", rule, measured_text(range));
  }
  return text;
}

}  // namespace accord::cli
