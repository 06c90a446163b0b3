#pragma once
// Requirements on a plan's shape and on single steps, whoever wrote them. Shared by builder, verifier and JSON
// import.

#include <algorithm>

#include "plan/plan.hpp"

namespace accord::plan {

inline constexpr int kMaxSize = 1 << 20;             ///< ranks
inline constexpr int kMaxLanes = 64;                 ///< per rank
inline constexpr int kMaxIds = 1 << 12;              ///< lane barriers per rank
inline constexpr std::int64_t kMaxChunks = 1 << 22;  ///< in all spaces of a rank; of a whole plan, of all ranks

// Room in a rank's window in a group of `size` (exec/window_layout.hpp). Plans for many ranks use no more than that.
/// Signal ids of each pair of ranks.
constexpr int signals_of_pair(int size) { return std::max(16, 2 * size); }
/// Packet chunks of a rank.
constexpr int packet_chunks_of(int size) { return std::clamp(size, 4, 16) * size; }

/// Checks size, root, chunk counts and signal counts. The message does not name the plan.
Status check_shape(const Plan& plan);
/// The same for a plan with the programs of all ranks.
Status check_whole_shape(const Plan& plan);

/// Checks one step of `rank`: kinds and numbers of operands, ranks, indexes, allowed memory. The message does not
/// give the place.
Status check_step(const Plan& plan, Rank rank, const Step& step);

/// A place in a plan.
struct StepPlace {
  Rank rank = 0;
  int lane = 0;
  int step = 0;
};

/// "rank 2, lane 0, step 5 (wait for signal 0 of rank 3)".
std::string to_string(const StepPlace& place, const Step& step);
/// The same, for a step of `plan`.
std::string place_text(const Plan& plan, const StepPlace& place);

/// Returns kInvalidArgument: the plan, the place, ": ", `problem`.
Status step_error(const Plan& plan, const StepPlace& place, const Step& step, std::string_view problem);

/// Number of different chunk lengths that the caller's buffers are cut into: chunks of input or output whose indexes
/// are equal modulo this number have equal lengths for every count.
int length_classes(const Plan& plan);

}  // namespace accord::plan
