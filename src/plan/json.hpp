#pragma once
// Plans as text for people and tools; docs/plan-format.md describes the format.
//
//   {"format": "accord-plan", "version": 1, "name": "two_shot", "collective": "all_reduce", "size": 2, "root": 0,
//    "order": "canonical", "pacing": "by_plan", "signals": 2,
//    "chunks": {"input": 2, "output": 2, "scratch": 2, "packets": 0},
//    "programs": [                               one per rank: its lanes, each a list of steps
//      {"lanes": [[{"step": "copy", "from": [[0, "input", 1]], "to": [[0, "scratch", 1]]},
//                  {"step": "signal", "peer": 1, "id": 0}, {"step": "wait", "peer": 1, "id": 0}, ...]]}, ...]}
//
// A chunk is [rank, space, index]. Steps: copy, reduce and put_packets have from and to; signal and wait have peer
// and id; lane_barrier has id. "chunks" may also have "partials" and "multicast". All other keys are required;
// unknown keys are errors.

#include <string>
#include <string_view>

#include "plan/plan.hpp"

namespace accord::plan {

inline constexpr int kPlanJsonVersion = 1;
/// Stands for kEveryRank in the place of a chunk's rank.
inline constexpr std::string_view kEveryRankWord = "every";

/// Writes one line per step.
std::string to_json(const Plan& plan);

/// The inverse: returns an equal plan. Checks only what builder.hpp checks; call verify() on plans from other
/// sources. kCorrupt names the place in the text ("programs[0].lanes[0][3].from[0]") and the problem; kUnsupported
/// reports an unknown version.
Result<Plan> plan_from_json(std::string_view text);

}  // namespace accord::plan
