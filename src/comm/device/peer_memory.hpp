#pragma once
// Memory on the GPU of every rank that the kernels of all ranks of a group reach.

#include <cstddef>
#include <memory>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "base/clock.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

class Group;

/// Zeroed, and of equal size on all ranks. A peer of the same process keeps this rank's part as long as it needs it; one of another process has
/// it mapped until it lets go, and must not use it once the owner has.
class PeerMemory {
 public:
  /// Collective over the group: all ranks get it, or all an error. kUnsupported if the GPU of one rank does not reach that of another (another
  /// host, no way between them); `bytes` at least 64 KiB. `ready`: whether this rank can go on; if not, that is an error of all.
  static Result<std::unique_ptr<PeerMemory>> create(Group& group, device::Runtime& runtime, Device device,
                                                    std::size_t bytes, Deadline deadline, const Status& ready = {});
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// That of `rank`, where this rank's kernels find it.
  std::byte* of(Rank rank) const { return parts_[static_cast<std::size_t>(rank)].memory; }
  std::size_t bytes() const { return bytes_; }

  /// One rank's memory; gives it back to its device.
  struct Allocation;

 private:
  struct Part {
    std::byte* memory = nullptr;
    std::shared_ptr<Allocation> allocation = {};  ///< of this process; null: it was opened
  };
  PeerMemory(device::Runtime& runtime, Device device, std::size_t bytes)
      : runtime_(runtime), device_(device), bytes_(bytes) {}
  Status allocate();
  Status open(Group& group, Rank rank, const std::string& said);

  device::Runtime& runtime_;
  const Device device_;
  const std::size_t bytes_;
  std::shared_ptr<Allocation> mine_;
  std::vector<Part> parts_;
};

}  // namespace accord::comm
