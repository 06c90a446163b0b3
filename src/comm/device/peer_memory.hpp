#pragma once
// Memory on the GPU of every rank that the kernels of all ranks of a group can access.

#include <cstddef>
#include <memory>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "base/clock.hpp"
#include "comm/device/memory_lease.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

class Group;

/// Memory of a GPU that this process has from elsewhere.
struct LentMemory {
  std::byte* memory = nullptr;
  std::shared_ptr<const void> owner = {};  ///< keeps it; null if the program does
};

/// Zeroed, and of equal size on all ranks. A rank's part is given back to its device, or to its owner, once no rank has
/// it any more: the ranks of its process share it, and those of other processes have a lease (memory_lease.hpp). May be
/// destroyed once this rank's kernels do not use it.
class PeerMemory {
 public:
  /// A collective of the group: it succeeds on all ranks or fails on all. kUnsupported if the GPU of one rank cannot
  /// access that of another (another host, no connection). `ready`: an error of this rank that makes all ranks fail, or
  /// ok.
  static Result<std::unique_ptr<PeerMemory>> create(Group& group, device::Runtime& runtime, Device device,
                                                    std::size_t bytes, Deadline deadline, const Status& ready = {});
  /// The same for `bytes` of memory that each rank already has, which are not zeroed. They must be in one allocation
  /// (device::Runtime::share). Ranks of this process keep the owner as long as they need the memory.
  static Result<std::unique_ptr<PeerMemory>> share(Group& group, device::Runtime& runtime, Device device,
                                                   const LentMemory& lent, std::size_t bytes, Deadline deadline);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// The memory of `rank`, at the address for this rank's kernels.
  std::byte* of(Rank rank) const { return parts_[static_cast<std::size_t>(rank)].memory; }
  std::size_t bytes() const { return bytes_; }

  /// One rank's memory; returns it to its device when destroyed.
  struct Allocation;

 private:
  struct Part {
    std::byte* memory = nullptr;
    std::shared_ptr<Allocation> allocation = {};  ///< of this process; null if it was opened
    MemoryLease lease = {};                       ///< if it was opened
  };
  PeerMemory(device::Runtime& runtime, Device device, std::size_t bytes)
      : runtime_(runtime), device_(device), bytes_(bytes) {}
  Status allocate();
  /// Publishes this rank's part, and opens those of the others. `ready`: as for create().
  Status exchange(Group& group, const Status& ready, Deadline deadline);
  /// `text`: what `rank` has published. `descriptor`: of its memory, or -1.
  Status open(Group& group, Rank rank, const std::string& text, int descriptor);

  device::Runtime& runtime_;
  const Device device_;
  const std::size_t bytes_;
  std::shared_ptr<Allocation> mine_;
  std::vector<Part> parts_;
};

}  // namespace accord::comm
