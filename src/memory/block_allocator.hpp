#pragma once
// Places in a stretch of memory: which are taken, which are free.

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace accord::memory {

/// Hands out places in `bytes` bytes, as offsets from their start. Best fit, and neighbours that are free become one. Its books are
/// kept apart from the memory, so that whoever writes there cannot damage them. Thread-safe. Cost: O(log of the free places).
class BlockAllocator {
 public:
  /// Places begin at multiples of this and never share such a unit.
  static constexpr std::size_t kUnit = 64;

  explicit BlockAllocator(std::size_t bytes);

  /// `alignment`: a power of two. nullopt if no free place is large enough.
  std::optional<std::size_t> allocate(std::size_t bytes, std::size_t alignment);
  /// REQUIRES: allocate() gave `offset`, and it was not released since.
  void release(std::size_t offset);

  std::size_t free_bytes() const;
  std::size_t largest_free() const;

 private:
  void add_free(std::size_t offset, std::size_t bytes);
  void remove_free(std::map<std::size_t, std::size_t>::iterator place);

  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;                ///< bytes by offset; no two touch
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  ///< the same as (bytes, offset)
  std::unordered_map<std::size_t, std::size_t> taken_;     ///< bytes by offset
};

}  // namespace accord::memory
