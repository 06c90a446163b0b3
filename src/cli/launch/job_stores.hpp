#pragma once
// The stores through which the ranks of one start of a job find each other, hosted by the launcher of node 0.

#include <memory>

#include "accord/status.hpp"
#include "accord/store.hpp"
#include "cli/launch/job.hpp"
#include "cli/launch/messages.hpp"
#include "cli/launch/torch_store.hpp"

namespace accord::cli {

/// PyTorch's store at MASTER_PORT and accord's at a port after it. Both are empty at first and end with this object,
/// so no rank has to outlive the others.
class JobStores {
 public:
  /// Hosts the stores for the ranks of `start`, and records in it where they are. Fails with kIo if --master-port is
  /// taken.
  static Result<JobStores> host(const Job& job, Start& start);

  void add_watches(Watches& watches);

 private:
  JobStores() = default;

  std::unique_ptr<TorchStore> torch_;  ///< null if rank 0 hosts it
  std::shared_ptr<Store> accord_;      ///< null for one rank, which needs none
};

}  // namespace accord::cli
