#pragma once
// The memory in which the kernels of all ranks meet, and the words in it that count calls.
//
// Each call of the group has a number: one more than the calls completed on this rank. A rank writes data into the
// memory of another, and then a signal: a word with the call's number. The other rank waits for the signals of the
// data that it reads, and reports in a last word that it has finished the call. Nobody writes there for the next call
// before that. All of this is counted on the devices, so a graph may be launched repeatedly.

#include "expert/device/call_block.hpp"

namespace accord::expert {

/// Words that a rank shares about its tokens: their number, ids out of range, duplicates. One word is unused.
inline constexpr int kRoutingWords = 4;

/// Layout of each rank's memory that the kernels of all ranks reach; offsets in bytes.
struct SharedLayout {
  std::size_t arrived = 0;      ///< [ranks] words: last call for which each rank has shared its routing
  std::size_t done = 0;         ///< [ranks] words: last call that each rank has finished
  std::size_t to_experts = 0;   ///< [ranks, max_local] words: last call whose rows for a local expert have all come
  std::size_t to_tokens = 0;    ///< [places] words: last call whose rows of an expert have all come
  std::size_t routing = 0;      ///< [ranks, kRoutingWords] words: from the last routing of each rank
  std::size_t ids = 0;          ///< [ranks, tokens, top_k] int32: ids of each rank, -1 for no choice
  std::size_t weights = 0;      ///< the same shape in float32, if the group drops by weight
  std::size_t rows = 0;         ///< rows in transit: [ranks, tokens, row] to experts, [tokens, top_k, row] to tokens
  std::size_t scales = 0;       ///< of these rows, [scales of a row] float32
  std::size_t row_weights = 0;  ///< [ranks, tokens, top_k] or [tokens, top_k] float32 or float64
  std::size_t bytes = 0;        ///< total size
  std::int64_t choices = 0;     ///< tokens * top_k: choices of each rank in `ids` and `weights`
  int max_local = 0;            ///< places of the rank that has the most
};

/// Group state that every kernel of a call receives.
struct Peers {
  std::byte* const* memory = nullptr;  ///< [size], indexed by rank
  const std::uint64_t* stop = nullptr;
  OwnWords* own = nullptr;
  /// Rows sent in this call: [places] to experts, [ranks, max_local] to tokens. Zero between calls.
  std::uint64_t* sent = nullptr;
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
  /// The number of the call that runs.
  ACCORD_ON_DEVICE std::uint64_t round() const { return own->round + 1; }
};

/// Waits until all ranks have finished the previous call, whose data this one overwrites in their memory.
template <typename Block>
ACCORD_ON_DEVICE bool await_previous_call(CallBlock<Block>& call, const Peers& peers) {
  return call.await(peers.size, peers.own->round,
                    [&](std::int64_t r) { return peers.mine<std::uint64_t>(peers.at.done) + r; });
}

/// Called last by all blocks, once they have read everything that others wrote for this call: the last block reports
/// to all ranks that the call is done here.
template <typename Block>
ACCORD_ON_DEVICE void leave(Block& block, CallBlock<Block>& call, const Peers& peers) {
  const std::uint64_t round = peers.round();
  if (!call.is_end_of_kernel()) return;
  for (int r = block.thread(); r < peers.size; r += block.threads())
    block.store_release(peers.of<std::uint64_t>(r, peers.at.done) + peers.rank, round);
  if (block.thread() == 0) block.store(&peers.own->round, round);
}

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
