#pragma once
// The groups of an engine: this rank's place in each, the communicators that are bound to them, and the engine's state.

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/runtime/states.hpp"

namespace accord::engine {

/// Thread-safe. The places never change after set_places(); the communicators do not change during a run.
class BoundGroups {
 public:
  /// Called once, before all others. `names`: the groups that the engine needs; a group without a place has one rank.
  void set_places(const std::vector<std::string>& names, const std::map<std::string, GroupPlace>& places,
                  int canonical_ranks);

  const std::map<std::string, GroupPlace>& places() const { return places_; }
  /// The groups of several ranks, and where their communicators are in communicators().
  const std::map<std::string, int>& index() const { return index_; }
  /// Whether ranks run other layers, or other rows, than their peers.
  bool divides_runs() const { return index_.contains(kStageGroup) || index_.contains(kBatchGroup); }

  /// Implements Engine::bind() for an engine with that digest, which must be equal on all ranks.
  Status bind(const std::map<std::string, Communicator>& communicators, const std::string& digest);
  /// The same without the checks and the agreement.
  Status bind_agreed(const std::map<std::string, Communicator>& communicators);
  Status unbind();
  EngineState state() const;
  void close();
  /// How often communicators have been bound.
  std::uint64_t bindings() const { return bindings_.load(std::memory_order_acquire); }

  /// Between these two calls the engine is Running and `communicators` may be used.
  Status begin_run();
  void end_run();
  std::span<const std::optional<Communicator>> communicators() const { return communicators_; }
  /// The communicator of a group; nullopt if the group has one rank.
  std::optional<Communicator> communicator(const std::string& group) const;
  /// The communicators that are bound to groups of several ranks.
  std::map<std::string, Communicator> peers() const;

 private:
  Status check(const std::map<std::string, Communicator>& communicators) const;
  Result<Communicator> communicator_for(const Communicator& given) const;

  std::map<std::string, GroupPlace> places_;
  std::map<std::string, int> index_;
  int canonical_ranks_ = 0;
  mutable std::mutex mutex_;
  StateMachine state_;                                      ///< guarded by mutex_
  std::vector<std::optional<Communicator>> communicators_;  ///< written under mutex_, while nothing runs
  std::atomic<std::uint64_t> bindings_{0};
};

/// `communicators` without those of one rank, which have nothing to agree on.
std::map<std::string, Communicator> with_peers(const std::map<std::string, Communicator>& communicators);

}  // namespace accord::engine
