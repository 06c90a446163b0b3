#pragma once
// Results of `accord tune`: rules on the screen, a table, a plot, JSON.

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "cli/tune/winners.hpp"
#include "plan/tuning.hpp"

namespace accord::cli {

struct TuneOutput {
  std::string table;     ///< file
  std::string plot{};    ///< file; empty: none
  bool as_json = false;  ///< instead of rules
};

/// Fails if a file of the output cannot be written.
Status check_files(const TuneOutput& output);

/// Prints the rules of a collective, unless JSON follows in the end.
void show_rules(const TuneOutput& output, const TunedCollective& tuned);

/// Writes the table and the plot. Prints where the table is, or the JSON.
Status write_results(const TuneOutput& output, const plan::TuningFacts& facts, const std::vector<TunedCollective>& all);

}  // namespace accord::cli
