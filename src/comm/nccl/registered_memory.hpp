#pragma once
// Memory that is registered with an NCCL communicator: as a window of all ranks, or by this rank alone.

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/clock.hpp"
#include "comm/device/registered_memory.hpp"
#include "comm/nccl/library.hpp"
#include "device/runtime.hpp"

namespace accord::comm::nccl {

class Memory;

/// The registrations of one communicator, while it exists.
struct Registry {
  std::mutex calls;  ///< held during calls on the communicator; guards what follows
  Communicator* communicator = nullptr;
  std::set<Memory*> registered;
  /// Memory that the library may write to until the communicator is aborted.
  std::vector<std::shared_ptr<Memory>> unfinished;

  /// Called before the communicator is destroyed or aborted. REQUIRES: `calls` is held.
  enum class End { kDestroyed, kAborted };
  void end(End how);
};

/// Arguments of register_memory(). REQUIRES: registry->calls is held, the device is current, and the registry's
/// communicator is connected.
struct Registration {
  Group& group;
  const Library& library;
  device::Runtime& runtime;
  Device device;
  std::shared_ptr<Registry> registry;
  /// Returns once the communicator has no pending operation.
  std::function<Status(const char* function)> wait_until_idle;
  Deadline deadline;
};

/// A collective of the group: registers `bytes` at `memory`, or memory that it allocates if that is null. An error of
/// one rank is returned on all; after one in NCCL's own collective the group has failed.
Result<std::shared_ptr<RegisteredMemory>> register_memory(const Registration& with, void* memory, std::size_t bytes);

}  // namespace accord::comm::nccl
