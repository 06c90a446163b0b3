#pragma once
// Ranks that share cores: a core runs one rank until that rank waits.

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/machine.hpp"

namespace accord::sim {

/// The cores of a machine, and the ranks that run on them. A rank keeps its core while one of its lanes runs; then the
/// core goes to the rank that asked for it first. Ranks that have a core to themselves always run.
class Cores {
 public:
  Cores(const Machine& machine, std::size_t ranks);

  /// Returns true if `lane` runs from now on, or has run already. Otherwise it waits for the core of its rank, and
  /// granted() returns it later.
  bool begin(Rank rank, std::uint32_t lane, double now);
  /// Marks a lane of a rank that has the core as running.
  void go_on(Rank rank, std::uint32_t lane);
  /// The lane does not run any more. The rank keeps the core until release_if_idle().
  void stop(Rank rank, std::uint32_t lane);
  void release_if_idle(Rank rank, double now);

  /// Lanes that have got a core since the last call, and the time from which they run.
  std::vector<std::pair<std::uint32_t, double>> granted() { return std::exchange(granted_, {}); }

 private:
  static constexpr Rank kNobody = -1;
  struct Core {
    Rank owner = kNobody;
    Rank last = kNobody;                                    ///< the last owner
    std::vector<std::pair<Rank, std::uint32_t>> waiting{};  ///< ranks and lanes, in the order in which they came
  };
  Core& core_of(Rank rank) { return cores_[core_of_rank_[static_cast<std::size_t>(rank)]]; }
  bool runs(std::uint32_t lane) const { return lane < runs_.size() && runs_[lane]; }
  void grant_to(Core& core, Rank rank, double now);

  bool are_shared_ = false;
  double switch_seconds_;
  std::vector<std::uint32_t> core_of_rank_;
  std::vector<std::uint32_t> running_;  ///< lanes, by rank
  std::vector<bool> runs_;              ///< by lane
  std::vector<Core> cores_;
  std::vector<std::pair<std::uint32_t, double>> granted_;
};

}  // namespace accord::sim
