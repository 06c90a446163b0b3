#pragma once
// How the kernels of all ranks meet: through words in each other's memory that count the calls of the group.
//
// Each call has a number, one more than the calls completed on this rank, and each call has one meeting. A rank that
// arrives at the meeting has written the data that others will read. A rank that has finished reading says so, and
// waits until all ranks have said so before it writes there again in the next call. All of this is counted on the
// devices, so a graph may be launched repeatedly. Waiting kernels also poll a word of the host, which is set once the
// group has failed; from then on the kernels of this rank do nothing.
//
// Only kernels of one block wait. Enough waiting blocks to fill the device would keep all other work from running
// there: the kernels of other ranks that share the device, which they wait for, and the kernels of other streams.

#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"

namespace accord::expert {

/// Layout of each rank's memory that the kernels of all ranks reach; offsets in bytes.
struct SharedLayout {
  std::size_t arrived = 0;      ///< [ranks] words: last call whose meeting each rank has reached
  std::size_t done = 0;         ///< [ranks] words: last call that each rank has finished
  std::size_t routing = 0;      ///< [ranks, kRoutingWords] words: from the last routing of each rank
  std::size_t ids = 0;          ///< [ranks, tokens, top_k] int32: ids of each rank, -1 for no choice
  std::size_t weights = 0;      ///< the same shape in float32, if the group drops by weight
  std::size_t rows = 0;         ///< [tokens * top_k, row]: rows in transit
  std::size_t scales = 0;       ///< [tokens * top_k, scales of a row] float32
  std::size_t row_weights = 0;  ///< [tokens, top_k] float32 or float64
  std::size_t bytes = 0;        ///< total size
  std::int64_t choices = 0;     ///< tokens * top_k: choices of each rank in `ids` and `weights`
};

/// Words that a rank shares about its tokens: their number, ids out of range, duplicates. One word is unused.
inline constexpr int kRoutingWords = 4;

/// Counters of this rank's kernels.
struct OwnWords {
  std::uint64_t round = 0;  ///< calls completed on this rank
  std::uint64_t failed = 0;
  std::uint64_t out_of_range = 0, duplicates = 0;  ///< of the routing being shared
  std::uint64_t late = 0;                          ///< result of CountLate
};

/// Group state that every kernel receives.
struct Peers {
  std::byte* const* memory = nullptr;  ///< [size], indexed by rank
  const std::uint64_t* stop = nullptr;
  OwnWords* own = nullptr;
  int rank = 0;
  int size = 1;
  SharedLayout at = {};

  template <typename T>
  ACCORD_ON_DEVICE T* of(int r, std::size_t offset) const {
    return reinterpret_cast<T*>(memory[r] + offset);
  }
  template <typename T>
  ACCORD_ON_DEVICE T* mine(std::size_t offset) const {
    return of<T>(rank, offset);
  }
  ACCORD_ON_DEVICE std::uint64_t round() const { return own->round + 1; }
};

template <typename Block>
ACCORD_ON_DEVICE bool has_failed(Block& block, const Peers& peers) {
  return block.load(&peers.own->failed) != 0;
}

/// Waits until the words of all ranks at `offset` have reached `round`, and returns true, or until the group has
/// failed, and returns false. All threads of the block must call it; all get the same result.
template <typename Block>
ACCORD_ON_DEVICE bool wait_for(Block& block, const Peers& peers, std::size_t offset, std::uint64_t round) {
  constexpr int kPollsPerStopCheck = 16;  // the stop word is in host memory, which is slow to read
  std::uint64_t failed = block.load(&peers.own->failed);
  for (int r = block.thread(); r < peers.size; r += block.threads()) {
    const std::uint64_t* const word = peers.mine<std::uint64_t>(offset) + r;
    for (int polls = 1; failed == 0 && block.load_acquire(word) < round; ++polls) {
      if (polls % kPollsPerStopCheck == 0) failed = block.load(peers.stop);
      block.pause();
    }
  }
  failed = block.block_max(failed);
  if (failed != 0 && block.thread() == 0) block.store(&peers.own->failed, 1);
  return failed == 0;
}

/// One block: waits until all ranks have read the previous call's data. Kernels that overwrite that data run next.
struct AwaitRead {
  static constexpr const char* kName = "expert_await_read";
  static constexpr int kThreads = 128;
  Peers peers;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    (void)wait_for(block, peers, peers.at.done, peers.own->round);
  }
};

/// One block: the meeting of a call.
struct MeetPeers {
  static constexpr const char* kName = "expert_meet_peers";
  static constexpr int kThreads = 128;
  Peers peers;
  bool shares_routing = false;
  std::int64_t tokens = 0;  ///< this rank's, if shares_routing
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    const std::uint64_t round = peers.round();
    for (int r = block.thread(); r < peers.size; r += block.threads()) {
      if (shares_routing) {
        std::uint64_t* const words = peers.of<std::uint64_t>(r, peers.at.routing) + kRoutingWords * peers.rank;
        words[0] = static_cast<std::uint64_t>(tokens);
        words[1] = peers.own->out_of_range;
        words[2] = peers.own->duplicates;
      }
      block.store_release(peers.of<std::uint64_t>(r, peers.at.arrived) + peers.rank, round);
    }
    (void)wait_for(block, peers, peers.at.arrived, round);
  }
};

/// One block: signals that this rank has read everything others wrote for it.
struct LeavePeers {
  static constexpr const char* kName = "expert_leave_peers";
  static constexpr int kThreads = 128;
  Peers peers;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    const std::uint64_t round = peers.round();
    block.sync();
    for (int r = block.thread(); r < peers.size; r += block.threads())
      block.store_release(peers.of<std::uint64_t>(r, peers.at.done) + peers.rank, round);
    if (block.thread() != 0) return;
    peers.own->round = round;
    peers.own->out_of_range = peers.own->duplicates = 0;
  }
};

/// One block: counts the ranks that have not finished this rank's last call.
struct CountLate {
  static constexpr const char* kName = "expert_count_late";
  static constexpr int kThreads = 128;
  Peers peers;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    std::uint64_t late = 0;
    for (int r = block.thread(); r < peers.size; r += block.threads())
      late += block.load_acquire(peers.mine<std::uint64_t>(peers.at.done) + r) < peers.own->round ? 1 : 0;
    late = block.block_sum(late);
    if (block.thread() == 0) peers.own->late = late;
  }
};

}  // namespace accord::expert
