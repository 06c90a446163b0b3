#pragma once
// How the blocks of a call's kernel wait, for other ranks and for each other. Such a kernel has at most one block per
// multiprocessor, and all of its blocks run at the same time (Grid::together). A waiting thread also polls a word of
// the host, which is set once the group has failed. From then on the kernels of this rank do nothing.

#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"
#include "exec/device/waits.hpp"

namespace accord::expert {

/// Counters of this rank's kernels.
struct OwnWords {
  std::uint64_t round = 0;  ///< calls completed on this rank
  std::uint64_t failed = 0;
  std::uint64_t late = 0;                          ///< result of CountLate
  std::uint64_t out_of_range = 0, duplicates = 0;  ///< of the routing being shared
  // These count for the kernel that runs, and are zero between kernels.
  std::uint64_t met = 0;      ///< arrivals of blocks at meetings
  std::uint64_t shared = 0;   ///< blocks that have shared their part of the routing
  std::uint64_t tickets = 0;  ///< work that blocks have taken
  std::uint64_t ended = 0;    ///< blocks that have done all their work
};

/// One block of a kernel. All threads of the block must make the same calls, and get the same results. Once a call
/// has returned false, the block must do nothing more.
template <typename Block>
class CallBlock {
 public:
  ACCORD_ON_DEVICE CallBlock(Block& block, OwnWords* own, const std::uint64_t* stop)
      : block_(block), own_(own), stop_(stop), ends_(block.any(block.load(&own->failed) != 0)) {}

  /// Whether the group had failed before this block began, or one of its waits has been ended.
  ACCORD_ON_DEVICE bool has_ended() const { return ends_; }

  /// Reads the host's word without a wait.
  ACCORD_ON_DEVICE bool check_stop() {
    ends_ = block_.any(ends_ || (block_.thread() == 0 && block_.load(stop_) != 0));
    if (ends_ && block_.thread() == 0) block_.store(&own_->failed, 1);
    return !ends_;
  }

  /// Waits until each word is null or has reached `value`. `word_of`: the address of a word, for 0 to `count` - 1.
  template <typename WordOf>
  ACCORD_ON_DEVICE bool await(std::int64_t count, std::uint64_t value, WordOf word_of) {
    bool ends = ends_;
    for (std::int64_t i = block_.thread(); i < count && !ends; i += block_.threads()) {
      const std::uint64_t* const word = word_of(i);
      if (word == nullptr) continue;
      ends = !exec::await(block_, stop_, ends, [&] { return block_.load_acquire(word) >= value; });
    }
    ends_ = block_.any(ends);
    if (ends_ && block_.thread() == 0) block_.store(&own_->failed, 1);
    return !ends_;
  }

  /// All blocks of this kernel meet, and see each other's writes. A block whose waits were ended does not arrive, so
  /// that no other block continues without its part.
  ACCORD_ON_DEVICE bool sync_blocks() {
    block_.sync();
    if (ends_) return false;
    if (block_.blocks() == 1) return true;
    meetings_ += static_cast<std::uint64_t>(block_.blocks());
    if (block_.thread() == 0) block_.add_acq_rel(&own_->met, 1);
    return await(1, meetings_, [this](std::int64_t) { return &own_->met; });
  }

  /// The number of the next piece of work that no block of this kernel has taken, from 0 on.
  ACCORD_ON_DEVICE std::int64_t next_ticket() {
    const std::uint64_t ticket = block_.thread() == 0 ? block_.add(&own_->tickets, 1) : 0;
    return static_cast<std::int64_t>(block_.block_max(ticket));
  }

  /// Counts this block's arrival in `counter`. True in the last block to arrive, which sees the writes of all others.
  ACCORD_ON_DEVICE bool is_last_at(std::uint64_t* counter) {
    block_.sync();
    if (ends_) return false;
    bool is_last = false;
    if (block_.thread() == 0)
      is_last = block_.add_acq_rel(counter, 1) + 1 == static_cast<std::uint64_t>(block_.blocks());
    return block_.any(is_last);
  }

  /// Called last: prepares the counters for the next kernel. True in one block, once all others have arrived here.
  ACCORD_ON_DEVICE bool is_end_of_kernel() {
    if (!is_last_at(&own_->ended)) return false;
    if (block_.thread() == 0) {
      block_.store(&own_->met, 0);
      block_.store(&own_->shared, 0);
      block_.store(&own_->tickets, 0);
      block_.store(&own_->ended, 0);
    }
    return true;
  }

 private:
  Block& block_;
  OwnWords* const own_;
  const std::uint64_t* const stop_;
  bool ends_;
  std::uint64_t meetings_ = 0;  ///< arrivals of all blocks up to this block's last meeting
};

}  // namespace accord::expert
