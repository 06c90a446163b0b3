#pragma once
// Memory that an NCCL communicator knows: as a window of all ranks, or as this rank's alone.

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

/// What one communicator knows, while there is one.
struct Registry {
  std::mutex calls;  ///< held by whoever calls the communicator; guards what follows
  Communicator* communicator = nullptr;
  std::set<Memory*> known;
  std::vector<std::shared_ptr<Memory>>
      unfinished;  ///< into which the library may write until the communicator is aborted

  /// Before the communicator is destroyed or aborted. REQUIRES: `calls` is held.
  enum class End { kDestroyed, kAborted };
  void end(End how);
};

/// What register_memory() needs. REQUIRES: registry->calls is held, the device is current, and the registry's communicator is connected.
struct Registering {
  Group& group;
  const Library& library;
  device::Runtime& runtime;
  Device device;
  std::shared_ptr<Registry> registry;
  /// Until the communicator has nothing under way.
  std::function<Status(const char* function)> settle;
  Deadline deadline;
};

/// Collective over the group: registers `bytes` at `memory`, or that it allocates where `memory` is null. An error of one rank is one on all; after one in
/// NCCL's own collective the group has failed.
Result<std::shared_ptr<RegisteredMemory>> register_memory(const Registering& with, void* memory, std::size_t bytes);

}  // namespace accord::comm::nccl
