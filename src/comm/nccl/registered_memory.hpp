#pragma once
// Memory that is registered with an NCCL communicator: as a window of all ranks, or by this rank alone.

#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/clock.hpp"
#include "comm/device/registered_memory.hpp"
#include "comm/nccl/connection.hpp"
#include "device/runtime.hpp"

namespace accord::comm::nccl {

class Memory;

/// The registrations of one communicator. Those of a communicator that was aborted ended with it.
struct Registry {
  explicit Registry(std::shared_ptr<Connection> its_connection) : connection(std::move(its_connection)) {}

  const std::shared_ptr<Connection> connection;
  int collectives = 0;  ///< calls of register_memory(), as many on all ranks; used by one thread at a time
  std::mutex mutex;     ///< guards what follows
  std::set<Memory*> registered;
  std::map<int, Memory*> windows;  ///< those of `registered` that are windows, by the number of their collective

  /// Called before the communicator is destroyed.
  void deregister_all();
};

/// Arguments of register_memory(). REQUIRES: the device is current, and the registry's communicator is connected.
struct Registration {
  Group& group;
  const Library& library;
  device::Runtime& runtime;
  Device device;
  std::shared_ptr<Registry> registry;
  WaitCheck check;
  Deadline deadline;
};

/// A collective of the group: registers `bytes` at `memory`, or memory that it allocates if that is null. An error of
/// one rank is returned on all; after one in NCCL's own collective the group has failed.
Result<std::shared_ptr<RegisteredMemory>> register_memory(const Registration& with, void* memory, std::size_t bytes);

}  // namespace accord::comm::nccl
