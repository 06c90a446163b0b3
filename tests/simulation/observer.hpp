#pragma once
// The findings of a run: violations of what the communicator promises, and how often each thing happened.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accord/communicator.hpp"
#include "simulation/scenario.hpp"
#include "simulation/world.hpp"

namespace accord::simulation {

/// Identifies a group on all of its ranks.
using GroupId = std::uint64_t;

/// Checks what ranks report. Called on their fibers.
class Observer {
 public:
  Observer(World& world, const Scenario& scenario) : world_(world), scenario_(scenario) {}

  void complain(const std::string& text);
  void count(const std::string& what);
  /// Counts what happens to a process together with the call that it is in.
  void count_fault(const char* what, const Process& process);

  /// A call on a group has ended. `limit`: for how long it may last. `calls`: it is one of those that end within a
  /// second of a member's death.
  struct Call {
    const char* name = "";
    Time begin = 0;
    Time paused_before = 0;  ///< Process::paused_by() at its beginning
    Time limit = 0;
    bool ends_with_peer = true;
  };
  Call begin(const char* name, Time limit);
  void end(const Communicator& communicator, const Call& call, const Status& status);
  /// The same for a call that has no group yet.
  void end(const Call& call, const Status& status);

  void note_closed(const Communicator& communicator);
  void note_shrunk(const Communicator& before, const Result<Communicator>& after);
  /// After the run: compares what the ranks got from shrink().
  void compare_shrunk();

  const std::vector<std::string>& violations() const { return violations_; }
  const std::map<std::string, std::uint64_t>& counts() const { return counts_; }

 private:
  struct Shrunk {
    int process = 0;
    StatusCode code = StatusCode::kOk;
    GroupId id = 0;
    std::vector<int> members;  ///< processes, by rank
  };
  void check_duration(const Call& call, const Status& status);
  bool has_gone(GroupId group, int process) const;

  World& world_;
  const Scenario& scenario_;
  std::vector<std::string> violations_;
  std::map<std::string, std::uint64_t> counts_;
  std::map<int, const char*> calls_;  ///< of each process, the one in progress
  std::set<std::pair<GroupId, int>> closed_;
  std::map<GroupId, std::vector<Shrunk>> shrunk_;
};

GroupId id_of(const Communicator& communicator);
/// The process of each rank.
std::vector<int> members_of(const Communicator& communicator);

}  // namespace accord::simulation
