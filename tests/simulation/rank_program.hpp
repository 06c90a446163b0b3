#pragma once
// The work of a rank in a run: the steps of its scenario, and going on with the others after failures.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "simulation/observer.hpp"
#include "simulation/scenario.hpp"
#include "simulation/world.hpp"

namespace accord::simulation {

class RankProgram {
 public:
  /// `must_abort`: once one is set, another thread of that process, counted from 0, aborts its communicator.
  RankProgram(World& world, const Scenario& scenario, Observer& observer, bool* must_abort)
      : world_(world), scenario_(scenario), observer_(observer), must_abort_(must_abort) {}

  /// Runs as the main thread of the process of `rank`.
  void run(Rank rank);
  /// Runs as the main thread of a process that joins a growing group before step `position`.
  void join(const std::string& name, std::uint64_t position);

 private:
  using Values = std::vector<std::int64_t>;

  bool create(Rank rank);
  void run_until_end();
  void run_steps();
  enum class Reason { kFailure, kStep };
  /// Shrinks until the remaining ranks have agreed on the next step. False if this rank cannot go on.
  bool recover(Reason reason);
  bool shrink();
  Status take(const Step& step);
  void leave();
  void check_that_nothing_is_left() const;

  /// Observes a call on `communicator`.
  Status watched(const Communicator& communicator, const char* name, const std::function<Status()>& call);
  Status reduce(Communicator& communicator, std::uint64_t count);
  Status broadcast(std::uint64_t count);
  Status gather(std::uint64_t count);
  Status reduce_scatter(std::uint64_t count);
  Status exchange(std::uint64_t count);
  Status ring(std::uint64_t count);
  Status started(std::uint64_t count);
  Status threads(std::uint64_t count);
  Status window(std::uint64_t count);
  Status split(std::uint64_t count);
  Status grow();
  Status reconfigure();
  /// Makes a call that must fail.
  void differ(std::uint64_t count);

  /// The contribution of the process of `rank` to this step, from element `first` on.
  Values values_of(const Communicator& communicator, Rank rank, std::uint64_t count, std::uint64_t first = 0) const;
  Values own_values(const Communicator& communicator, std::uint64_t count) const;
  Values sums(const Communicator& communicator, std::uint64_t count) const;
  void compare(const char* name, std::span<const std::int64_t> got, const Values& expected) const;
  CommunicatorOptions options(std::string name) const;

  World& world_;
  const Scenario& scenario_;
  Observer& observer_;
  bool* const must_abort_;
  std::optional<Communicator> communicator_;
  std::uint64_t position_ = 0;  ///< the next step
  int shrinks_ = 0;
};

}  // namespace accord::simulation
