#pragma once
// An allocator of blocks in a range of memory.

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace accord::memory {

/// Allocates blocks of `bytes` bytes of memory, as offsets from the start. Best fit; adjacent free blocks merge. The
/// bookkeeping is stored apart from the memory, so that writes to the memory cannot damage it. Thread-safe. Cost:
/// O(log of the number of free blocks).
class BlockAllocator {
 public:
  /// Blocks begin at multiples of this unit, and no two blocks share one.
  static constexpr std::size_t kUnit = 64;

  explicit BlockAllocator(std::size_t bytes);

  /// Returns nullopt if no free block is large enough. `alignment`: a power of two.
  std::optional<std::size_t> allocate(std::size_t bytes, std::size_t alignment);
  /// REQUIRES: `offset` came from allocate() and has not been released since.
  void release(std::size_t offset);

  std::size_t free_bytes() const;
  std::size_t largest_free() const;

 private:
  void add_free(std::size_t offset, std::size_t bytes);
  void remove_free(std::map<std::size_t, std::size_t>::iterator place);

  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;                 ///< bytes by offset; no two are adjacent
  std::set<std::pair<std::size_t, std::size_t>> by_size_;   ///< the same as (bytes, offset)
  std::unordered_map<std::size_t, std::size_t> allocated_;  ///< bytes by offset
};

}  // namespace accord::memory
