#pragma once
// How the kernels of all ranks meet: by words in each other's memory, which count the calls of the group.
//
// A call has a number, one more than what is over on this rank. Each call has one meeting: who comes to it has written what others will
// read. Who is done with reading says so, and waits for that of all before it writes there in the next call. All of this is counted on
// the devices, so a graph may be launched again and again. Who waits looks at a word of the host as well, which is set once the group has
// failed; from then on the kernels of this rank do nothing.
//
// Only kernels of one block wait. Blocks enough to fill the device would keep off whatever else is to run there: the kernels of other ranks that share
// it, for which they wait, and those of other streams.

#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"

namespace accord::expert {

/// Where things lie in the memory of each rank that the kernels of all ranks reach; offsets in bytes.
struct SharedLayout {
  std::size_t arrived = 0;      ///< [ranks] words: the last call to whose meeting each rank has come
  std::size_t done = 0;         ///< [ranks] words: the last call that each rank is done with
  std::size_t told = 0;         ///< [ranks, kTold] words: of the last routing of each rank
  std::size_t ids = 0;          ///< [ranks, tokens, top_k] int32: of each rank, -1 for no choice
  std::size_t weights = 0;      ///< the same in float32, of groups that drop by them
  std::size_t rows = 0;         ///< [tokens * top_k, row]: rows on their way
  std::size_t scales = 0;       ///< [tokens * top_k, scales of a row] float32
  std::size_t row_weights = 0;  ///< [tokens, top_k] float32 or float64
  std::size_t bytes = 0;        ///< of all
  std::int64_t choices = 0;     ///< tokens * top_k: of each rank in `ids` and `weights`
};

/// What a rank tells of its tokens: how many, ids out of range, duplicates.
inline constexpr int kTold = 4;

/// What this rank's kernels count.
struct OwnWords {
  std::uint64_t round = 0;  ///< calls that are over here
  std::uint64_t failed = 0;
  std::uint64_t out_of_range = 0, duplicates = 0;  ///< of the routing that is being told
  std::uint64_t late = 0;                          ///< what CountLate found
};

/// What every kernel knows of the group.
struct Peers {
  std::byte* const* memory = nullptr;  ///< [size], by rank
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

/// Returns once all ranks' words at `offset` have come to `round`: true, for all threads of the block, which all have to call it; or once
/// the group has failed: false.
template <typename Block>
ACCORD_ON_DEVICE bool wait_for(Block& block, const Peers& peers, std::size_t offset, std::uint64_t round) {
  constexpr int kBetweenLooks = 16;  // the host's memory is far away
  std::uint64_t failed = block.load(&peers.own->failed);
  for (int r = block.thread(); r < peers.size; r += block.threads()) {
    const std::uint64_t* const word = peers.mine<std::uint64_t>(offset) + r;
    for (int turn = 1; failed == 0 && block.load_acquire(word) < round; ++turn) {
      if (turn % kBetweenLooks == 0) failed = block.load(peers.stop);
      block.pause();
    }
  }
  failed = block.block_max(failed);
  if (failed != 0 && block.thread() == 0) block.store(&peers.own->failed, 1);
  return failed == 0;
}

/// One block: until all ranks have read what was written for them in the last call. Kernels that write there come next.
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
  bool tells_routing = false;
  std::int64_t tokens = 0;  ///< of that
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    const std::uint64_t round = peers.round();
    for (int r = block.thread(); r < peers.size; r += block.threads()) {
      if (tells_routing) {
        std::uint64_t* const told = peers.of<std::uint64_t>(r, peers.at.told) + kTold * peers.rank;
        told[0] = static_cast<std::uint64_t>(tokens);
        told[1] = peers.own->out_of_range;
        told[2] = peers.own->duplicates;
      }
      block.store_release(peers.of<std::uint64_t>(r, peers.at.arrived) + peers.rank, round);
    }
    (void)wait_for(block, peers, peers.at.arrived, round);
  }
};

/// One block: this rank is done with what others wrote for it.
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

/// One block: how many ranks are not yet done with this rank's last call.
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
