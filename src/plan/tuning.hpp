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
// Lines that begin with "#" are comments to the table's grammar (selector.hpp), and may be added to between the head and the end. The
// first line and the last one tell a whole file from others and from one that was cut off.

#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "plan/selector.hpp"

namespace accord::plan {

struct TuningFacts {
  std::string version;    ///< of accord
  std::string processor;  ///< that it was measured on
  int cores = 0;
  int ranks = 0;
  std::string measured;  ///< the day
};

/// The lines above the rules.
std::string tuning_head(const TuningFacts& facts);
/// The line after them.
std::string_view tuning_end();

/// What a file says of itself; its rules are checked, too. kCorrupt: no such file, not a whole one, or something before, after or
/// amid the rules that does not belong there, with its line; kInvalidArgument: a rule that has no meaning, with its line.
Result<TuningFacts> parse_tuning(std::string_view text);

/// The line, from 1, of a place in a text.
std::size_t line_of(std::string_view text, std::size_t place);

}  // namespace accord::plan
