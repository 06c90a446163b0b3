#pragma once
// The windows of a group.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "comm/window/window_table.hpp"

namespace accord::comm {

/// Numbers the windows, and keeps those whose memory is mapped on all ranks. Thread-safe.
class WindowRegistry {
 public:
  int next_number() const { return next_.load(std::memory_order_relaxed); }
  /// Marks that number as used by a window, or by an attempt to create one.
  void mark_used(int number) { next_.store(number + 1, std::memory_order_relaxed); }

  /// 0 until there is a window; grows with each change. Every call reads it, so it is only a load.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
  std::shared_ptr<const WindowTable> table() const;

  /// Adds window `number`. Its memory on this rank is `local`; that of member m begins at `members[m]` here.
  void add(int number, std::span<std::byte> local, std::vector<std::byte*> members, std::shared_ptr<const Links> links);
  void remove(int number);

 private:
  /// Replaces the table by a copy that `change` has modified.
  template <typename Change>
  void update(Change change);

  std::atomic<int> next_ = 0;
  std::atomic<std::uint64_t> version_ = 0;
  mutable std::mutex mutex_;
  std::shared_ptr<const WindowTable> table_ = std::make_shared<WindowTable>();
};

}  // namespace accord::comm
