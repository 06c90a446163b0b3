#pragma once
// Every algorithm at the sizes where the default table changes from one algorithm to another: one element below, at
// and above each.

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

#include "plan/selector.hpp"
#include "unit/plan/interpreter.hpp"
#include "unit/plan/plans_for_tests.hpp"

namespace accord::plan::testing {

/// Returns the thresholds in bytes, without 0 and infinity.
inline std::set<std::size_t> default_thresholds(Collective collective) {
  std::set<std::size_t> thresholds;
  const Result<SelectorTable> table = parse_table(default_table());
  for (const SelectorRow& row : table->rows)
    if (row.collective == collective) thresholds.insert({row.from_bytes, row.to_bytes});
  thresholds.erase(0);
  thresholds.erase(std::numeric_limits<std::size_t>::max());
  return thresholds;
}

/// Runs every algorithm for `size` ranks, in place and out of place, in one round and in several, on integers of
/// 8 bytes, and compares with the reference, whose arithmetic is exact. Uses the thresholds from `least` to `most`
/// bytes.
inline void run_around_thresholds(int size, std::size_t least, std::size_t most) {
  constexpr std::size_t kElement = 8;
  std::mt19937 random(13);
  for (const Plan& plan : all_plans(size)) {
    for (const std::size_t bytes : default_thresholds(plan.collective)) {
      if (bytes < least || bytes > most) continue;
      for (const std::size_t count : {bytes / kElement - 1, bytes / kElement, bytes / kElement + 1}) {
        for (const Aliasing aliasing : {Aliasing::kOutOfPlace, Aliasing::kInPlace}) {
          const bool apart = plan.buffers == Buffers::kInWindowsApart || !is_in_place_possible(plan.collective);
          if (aliasing == Aliasing::kInPlace && apart) continue;
          const std::size_t slice = random() % 2 == 0 ? count + 1 : count / 5 + 1;
          const MachineRequest request{
              .aliasing = aliasing, .count = count, .element_bytes = kElement, .slice = slice, .combine = mix};
          const std::optional<std::string> problem = run_randomly(plan, request, random);
          ASSERT_EQ(problem, std::nullopt) << to_string(plan) << ", count " << count << ", slice " << slice
                                           << ", in place " << (aliasing == Aliasing::kInPlace);
        }
      }
    }
  }
}

}  // namespace accord::plan::testing
