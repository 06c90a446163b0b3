#pragma once
// Which way of serving a call wins at a size, and the table rules that say so. Pure.

#include <cstddef>
#include <string>
#include <vector>

#include "cli/bench/operations.hpp"

namespace accord::cli {

/// The times of one candidate at one size.
struct Timing {
  std::string candidate;            ///< "two_shot@256k", as in a rule of a table; "default" is the table without rules
  std::string algorithm;            ///< algorithm that ran
  std::vector<double> rounds = {};  ///< seconds; rounds with equal index were measured one after the other
};

/// All candidates at one size.
struct TunedPoint {
  std::size_t bytes = 0;
  std::vector<Timing> timings;  ///< the default's first
};

/// Returns the median of the rounds, in seconds.
double seconds_of(const Timing& timing);

/// All sizes of a collective, in their order.
struct TunedCollective {
  const BenchOperation* operation = nullptr;
  std::string conditions;  ///< of the rules: "[ranks=2-2,oversubscribed=no,registered=no]"
  std::vector<TunedPoint> points;
};

/// The candidate that serves a size.
struct Winner {
  std::size_t bytes = 0;
  std::string candidate = "default";
  double seconds = 0;          ///< median
  double default_seconds = 0;  ///< median
  double gain = 1;             ///< speed relative to the default: the median over the rounds
};

/// Returns the candidate with the smallest median if it is better than the default by more than noise: by 5 % in the
/// median of the rounds, and in all rounds but one. Otherwise returns the default.
Winner winner_of(const TunedPoint& point);

/// A range of sizes that one candidate serves.
struct TunedRange {
  std::size_t from_bytes = 0;
  std::size_t to_bytes = 0;  ///< exclusive; the largest number is "inf"
  std::vector<Winner> winners;
};

/// Neighbouring sizes with equal winners form one range. Ranges meet half way (on a logarithmic axis) between two
/// sizes; the first begins at 0 and the last has no end. REQUIRES: points in the order of their sizes.
std::vector<TunedRange> ranges_of(const std::vector<TunedPoint>& points);

/// Returns the lines of a table, one for each range, with the measured times as a comment; ranges of the default are
/// comments only.
std::string rules_text(const TunedCollective& tuned);

}  // namespace accord::cli
