#pragma once
// Groups that go on without ranks that have died, and take in new ones.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "accord/communicator.hpp"
#include "accord/status.hpp"
#include "accord/store.hpp"

namespace accord {

namespace elastic {
class Members;
}

struct ElasticOptions {
  std::string name = "elastic";  ///< distinguishes the elastic groups of one store
  int min_ranks = 1;             ///< fewer form no group; those of the process that decides count
  int max_ranks = 1 << 16;       ///< further processes are spares: they wait until there is a place
  /// How long the first group waits for more ranks once `min_ranks` are there. Later groups wait only for the ranks of
  /// the one before.
  Duration last_call = std::chrono::seconds(10);
  /// How long form() waits for ranks of the former group that live but do not come, for `min_ranks`, and for the ranks
  /// to connect. Absent: the timeout of `communicator`.
  std::optional<Duration> form_timeout = {};
  CommunicatorOptions communicator = {};  ///< of the groups; its name is not used
};

/// One process's part in a group whose ranks change. When a rank has died, or others wait to join, the ranks call
/// form(), which makes a communicator of all processes that are there. Nothing else has to survive but the store. A
/// loop looks like this; examples/elastic_job.cpp has a whole one:
///
///     while (step < steps) {
///       auto formed = elastic->form();                    // of all that are there
///       auto source = elastic->most_advanced(step);       // the rank that has finished most steps
///       ... broadcast step and state from *source; if that fails, form again ...
///       ... steps, until others_wait() is true or a call fails ...
///     }
///     elastic->finish();
///
/// Processes may belong to any host that reaches the store and the other processes by TCP. Each elastic group of a
/// store has its own name, which is used for one job. Not thread-safe, but for close().
class ElasticGroup {
 public:
  /// Takes part in the elastic group `options.name` of `store`. Cost: a listening TCP socket and a thread, which
  /// sleeps.
  [[nodiscard]] static Result<ElasticGroup> open(std::shared_ptr<Store> store, ElasticOptions options = {});
  /// The same in the store of the job, with ACCORD_ELASTIC=MIN:MAX in place of the options' numbers of ranks. `accord
  /// run --elastic` sets it. kInvalidArgument if it is wrong or absent.
  [[nodiscard]] static Result<ElasticGroup> from_environment(ElasticOptions options = {});

  ElasticGroup(ElasticGroup&&) noexcept;
  ElasticGroup& operator=(ElasticGroup&&) noexcept;
  /// As close().
  ~ElasticGroup();

  /// Leaves the current communicator, which ends the calls of its other ranks with an error, so that they come here as
  /// well, and forms the next one: of its ranks that live, in their order, then of the processes that wait, at most
  /// `max_ranks`. Ranks of one host are neighbours. Waits as long as others work in a group that has no place for this
  /// process. Returns nullopt once the job is finished.
  ///
  /// Errors: kTimeout if `min_ranks` did not come; kMismatch if their communicators have different options; kIo if the
  /// store is gone; kAborted after close(). Ranks that die meanwhile are left out. Cost: some requests to the store for
  /// each process, and what Communicator::reconfigure() costs.
  [[nodiscard]] Result<std::optional<Communicator>> form();

  /// Returns true if processes wait that have a place in the group, so that all ranks should call form(). Collective:
  /// equal on all ranks. Cost: one request of rank 0 to the store, and a broadcast.
  [[nodiscard]] Result<bool> others_wait();

  /// Returns the rank whose `steps` is largest, the lowest such rank. Collective; equal on all ranks. `steps`: how far
  /// this process is; -1 if it has nothing that others could use.
  [[nodiscard]] Result<Rank> most_advanced(std::int64_t steps);

  /// Tells all processes that the job is done: form() returns nullopt from now on.
  [[nodiscard]] Status finish();

  /// Leaves for good; the others go on without this process. Any thread may call it, also during form().
  void close();

  /// How many groups all processes have formed, with the current one. 0 before the first.
  std::int64_t round() const;

 private:
  struct State;
  explicit ElasticGroup(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace accord
