#pragma once
// Windows on GPUs in which plans read and write the buffers of other ranks.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/device/peer_memory.hpp"
#include "comm/window_ranges.hpp"
#include "exec/device/device_layout.hpp"

namespace accord::comm {

/// This rank's memory in the windows of a group, by number. Thread-safe.
class PlanWindows {
 public:
  /// The places of a call's buffers, as in DeviceBuffers.
  struct Places {
    exec::PlaceWord input = exec::kNoPlace;
    exec::PlaceWord output = exec::kNoPlace;
    bool in_place = false;  ///< the two overlap
  };

  void add(int number, const void* memory, std::size_t bytes);
  void remove(int number);
  bool empty() const;
  /// Numbers that are free, as bits.
  std::uint64_t free_numbers() const;
  /// Nullopt unless all buffers that the rank has in a call are in windows. `record`: of a collective whose parts have
  /// equal counts. Calls without elements have no places.
  std::optional<Places> places_of(const exec::RequestRecord& record, const void* input, const void* output, Rank rank,
                                  int size) const;

 private:
  static_assert(exec::DeviceLayout::kMaxWindows == 64);
  mutable std::mutex mutex_;
  std::vector<LocalRange> ranges_;  ///< by address
};

/// One window: the memory of all ranks, as long as this rank may make calls on it. Released by any thread, which may
/// be after the group.
class PlanWindow {
 public:
  PlanWindow(std::shared_ptr<PlanWindows> windows, int number, std::unique_ptr<PeerMemory> memory, Rank rank);
  ~PlanWindow();
  PlanWindow(const PlanWindow&) = delete;
  PlanWindow& operator=(const PlanWindow&) = delete;

  /// This rank's part.
  void* data() const { return data_; }

 private:
  const std::shared_ptr<PlanWindows> windows_;
  const int number_;
  const std::unique_ptr<PeerMemory> memory_;
  void* const data_;
};

}  // namespace accord::comm
