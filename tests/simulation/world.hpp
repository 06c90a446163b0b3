#pragma once
// Everything that one run consists of besides what its processes do.

#include <memory>
#include <string>
#include <vector>

#include "accord/store.hpp"
#include "simulation/descriptors.hpp"
#include "simulation/heap.hpp"
#include "simulation/interposed_time.hpp"
#include "simulation/scheduler.hpp"
#include "simulation/transport.hpp"

namespace accord::simulation {

/// Hosts, processes, their kernel and network, and the store that all of them reach. Only one exists at a time.
class World {
 public:
  explicit World(std::uint64_t seed, const Pace& pace = {});

  Scheduler& scheduler() { return scheduler_; }
  Descriptors& descriptors() { return descriptors_; }
  Residents& residents() { return residents_; }
  /// The store of a server that is none of the processes.
  const std::shared_ptr<Store>& store() const { return store_; }

 private:
  struct Cleared {
    ~Cleared() {
      reset_heap();
      reset_wall_clocks();
    }
  };
  Cleared cleared_;  // after everything else is gone
  Scheduler scheduler_;
  Descriptors descriptors_;
  Residents residents_;
  std::shared_ptr<Store> store_;
};

}  // namespace accord::simulation
