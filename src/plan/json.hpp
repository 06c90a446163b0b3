#pragma once
// Plans as text that people and tools can read; docs/plan-format.md describes it.
//
//   {"format": "accord-plan", "version": 1, "name": "two_shot", "collective": "all_reduce", "size": 2, "root": 0,
//    "order": "canonical", "pacing": "by_plan", "signals": 2,
//    "chunks": {"input": 2, "output": 2, "scratch": 2, "packets": 0},
//    "programs": [                               one a rank: its lanes, each a list of steps
//      {"lanes": [[{"step": "copy", "from": [[0, "input", 1]], "to": [[0, "scratch", 1]]},
//                  {"step": "signal", "peer": 1, "id": 0}, {"step": "wait", "peer": 1, "id": 0}, ...]]}, ...]}
//
// A chunk is [rank, space, index]. Steps: copy, reduce and put_packets have from and to; signal and wait have peer and id;
// lane_barrier has id. "chunks" may also have "partials" and "multicast". Every other key is required; unknown ones are errors.

#include <string>
#include <string_view>

#include "plan/plan.hpp"

namespace accord::plan {

inline constexpr int kPlanJsonVersion = 1;
/// In the place of a chunk's rank: kEveryRank.
inline constexpr std::string_view kEveryRankWord = "every";

/// A step a line.
std::string to_json(const Plan& plan);

/// The inverse: gives an equal plan. Checks what builder.hpp checks, and no more: verify() what comes from others. kCorrupt tells
/// the place in the text ("programs[0].lanes[0][3].from[0]") and what is wrong; kUnsupported a version that is not ours.
Result<Plan> plan_from_json(std::string_view text);

}  // namespace accord::plan
