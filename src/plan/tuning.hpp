#pragma once
// The file that `accord tune` writes: a selection table, and where it was measured.
//
//   # accord tuning table 1
//   # version: 0.1.0
//   # processor: AMD EPYC 9575F
//   # cores: 2
//   # ranks: 2
//   # measured: 2026-11-22
//   all_reduce[ranks=2-2,oversubscribed=no]:0-256=one_shot;   # 0.31 us at 64 B; by default 0.40 us
//   # end
//
// Lines that begin with "#" are comments in the table's grammar (selector.hpp), and may be added between the head and
// the end. The first line and the last one distinguish a complete file from other files and from a truncated one.

#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "plan/selector.hpp"

namespace accord::plan {

/// In place of the processor's name in a table that was simulated: it fits any.
inline constexpr std::string_view kSimulatedProcessor = "simulated";

struct TuningFacts {
  std::string version;    ///< of accord
  std::string processor;  ///< of the measured machine
  int cores = 0;
  int ranks = 0;
  std::string measured;  ///< the day
};

/// The lines above the rules.
std::string tuning_head(const TuningFacts& facts);
/// The line after them.
std::string_view tuning_end();

/// Reads a file's facts and checks its rules. kCorrupt gives the line: not such a file, incomplete, or text before,
/// after or between the rules that does not belong there. kInvalidArgument gives the line of an invalid rule.
Result<TuningFacts> parse_tuning(std::string_view text);

/// The line, counted from 1, of a position in a text.
std::size_t line_of(std::string_view text, std::size_t place);

}  // namespace accord::plan
