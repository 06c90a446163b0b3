#pragma once
// Memory of every rank of a group that a switch between their GPUs reaches on all of them at once.

#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "comm/device/memory_lease.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

class Group;

/// Memory of equal size on all ranks, not zeroed. Every rank has a lease on the parts of all others, and a part is
/// given back to its device once these have ended. May be destroyed once this rank's kernels do not use it.
class MulticastMemory {
 public:
  /// A collective of the group, whose ranks share a host: it succeeds on all ranks or fails on all. kUnsupported says
  /// why there is none: a GPU without multicast, or two ranks on one GPU.
  static Result<std::unique_ptr<MulticastMemory>> create(Group& group, device::Runtime& runtime, Device device,
                                                         std::size_t bytes, Deadline deadline);
  ~MulticastMemory();
  MulticastMemory(const MulticastMemory&) = delete;
  MulticastMemory& operator=(const MulticastMemory&) = delete;

  std::byte* own() const { return part_.own; }
  std::byte* all() const { return part_.all; }

 private:
  MulticastMemory(device::Runtime& runtime, Device device) : runtime_(runtime), device_(device) {}
  /// Takes a lease on the part of each other rank. `names`: by rank.
  Status take_leases(Rank me, const std::vector<std::string>& names);
  Status join(Group& group, std::size_t bytes, Deadline deadline);

  device::Runtime& runtime_;
  const Device device_;
  device::Multicast part_;
  MemoryLeases leases_;
  std::vector<MemoryLease> taken_;
};

}  // namespace accord::comm
