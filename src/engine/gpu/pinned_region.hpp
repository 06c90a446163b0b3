#pragma once
// Pinned memory of the host, through which a context's copies to and from its device pass. A copy between a device and
// other host memory goes through a buffer of the driver's at a tenth of the bus's speed, and the caller waits for it.

#include <algorithm>
#include <utility>
#include <vector>

#include "device/memory.hpp"
#include "engine/gpu/engine_device.hpp"

namespace accord::engine {

/// The most bytes that pass through one region. Larger copies use the caller's memory: pinned pages are taken from the
/// system at once, and pinning them takes longer than a single copy saves.
inline constexpr std::size_t kMaxPinnedBytes = std::size_t{64} << 20;

/// Memory that only grows. Outgrown memory is kept until the end: callers may still read it, and its release would wait
/// for everything that runs on the device.
class PinnedRegion {
 public:
  /// `what`: the name of the memory in errors; must outlive this object.
  explicit PinnedRegion(const char* what) : what_(what) {}
  /// Makes room for `bytes`, and for twice as many as before. The contents are lost if the memory grows.
  Status grow(std::size_t bytes, const EngineDevice& on) {
    if (bytes <= memory_.size()) return Status();
    const std::size_t more = std::max(bytes, memory_.size() * 2);
    ACCORD_ASSIGN_OR_RETURN(device::Memory larger, device::Memory::allocate_host(*on.runtime, on.device, more, what_));
    outgrown_.push_back(std::exchange(memory_, std::move(larger)));
    return Status();
  }
  std::byte* data() const { return memory_.data(); }

 private:
  const char* what_;
  device::Memory memory_;
  std::vector<device::Memory> outgrown_;
};

}  // namespace accord::engine
