// The smallest free block that can hold the request at its alignment is split into the part before it, the request,
// and the part after it. A released block merges with its free neighbours.
#include "memory/block_allocator.hpp"

#include <algorithm>
#include <iterator>

#include "base/rounding.hpp"

namespace accord::memory {
BlockAllocator::BlockAllocator(std::size_t bytes) {
  if (bytes >= kUnit) add_free(0, bytes / kUnit * kUnit);
}

std::optional<std::size_t> BlockAllocator::allocate(std::size_t bytes, std::size_t alignment) {
  const std::lock_guard lock(mutex_);
  if (by_size_.empty() || bytes > by_size_.rbegin()->first) return std::nullopt;
  const std::size_t wanted = round_up(std::max<std::size_t>(bytes, 1), kUnit);
  const std::size_t step = std::max(alignment, kUnit);
  for (auto fit = by_size_.lower_bound({wanted, 0}); fit != by_size_.end(); ++fit) {
    const auto [size, begin] = *fit;
    const std::size_t offset = round_up(begin, step);
    if (offset - begin > size - wanted) continue;
    remove_free(free_.find(begin));
    if (offset > begin) add_free(begin, offset - begin);
    if (offset + wanted < begin + size) add_free(offset + wanted, begin + size - offset - wanted);
    allocated_.emplace(offset, wanted);
    return offset;
  }
  return std::nullopt;
}

void BlockAllocator::release(std::size_t offset) {
  const std::lock_guard lock(mutex_);
  const auto allocated = allocated_.find(offset);
  std::size_t begin = offset, end = offset + allocated->second;
  allocated_.erase(allocated);
  const auto behind = free_.lower_bound(begin);
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == begin) {
      begin = before->first;
      remove_free(before);
    }
  }
  if (behind != free_.end() && behind->first == end) {
    end += behind->second;
    remove_free(behind);
  }
  add_free(begin, end - begin);
}

std::size_t BlockAllocator::free_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& place : free_) sum += place.second;
  return sum;
}

std::size_t BlockAllocator::largest_free() const {
  const std::lock_guard lock(mutex_);
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

void BlockAllocator::add_free(std::size_t offset, std::size_t bytes) {
  free_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void BlockAllocator::remove_free(std::map<std::size_t, std::size_t>::iterator place) {
  by_size_.erase({place->second, place->first});
  free_.erase(place);
}

}  // namespace accord::memory
