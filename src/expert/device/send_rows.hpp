#pragma once
// The kernel of dispatch() and combine_backward(), where all ranks reach each other's memory. Each rank pushes its
// rows: it writes them into the memory of the ranks that hold the experts, once for each rank that needs a row, and
// signals for each expert when all of its rows for that expert are there. The receiver copies the rows from there to
// their slots, expert by expert, as soon as the signals for them have come.

#include "expert/device/map.hpp"
#include "expert/device/peers.hpp"
#include "expert/device/row_copies.hpp"

namespace accord::expert {

/// Blocks that receive from the beginning, so that rows are copied to slots while this rank still sends: one in this
/// many. The others send first.
inline constexpr int kReceivers = 4;

template <typename Block>
ACCORD_ON_DEVICE int senders_of(Block& block) {
  return block.blocks() - block.blocks() / kReceivers;
}

/// A rank's rows in transit, from the place for row `i` on, with the scales and weights that the call has.
ACCORD_ON_DEVICE inline Rows transit_at(const Peers& peers, int rank, std::size_t i, std::size_t weight,
                                        const RowBytes& bytes) {
  std::byte* const memory = peers.memory[rank];
  return row_at(Rows{memory + peers.at.rows, bytes.scales > 0 ? memory + peers.at.scales : nullptr,
                     bytes.weight > 0 ? memory + peers.at.row_weights : nullptr},
                i, weight, bytes);
}

/// Counts one more row in `sent`, and signals if it is the last of `rows`. A warp calls it, after sync_warp(), for
/// rows that it has written; `signal` is a word of the rank that gets the rows.
template <typename Block>
ACCORD_ON_DEVICE void count_sent(Block& block, std::uint64_t* sent, std::int64_t rows, std::uint64_t* signal,
                                 std::uint64_t round) {
  if (block.add_acq_rel(sent, 1) + 1 != static_cast<std::uint64_t>(rows)) return;
  block.store(sent, 0);
  block.store_release(signal, round);
}

struct SendRows {
  static constexpr const char* kName = "expert_send_rows";
  static constexpr int kThreads = 512, kMinBlocks = 2;
  Peers peers;
  Map map;
  ConstRows tokens;  ///< with [tokens, top_k] weights
  Rows slots;
  std::int64_t room = 0;  ///< rows that fit into `slots`
  RowBytes bytes;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    CallBlock call(block, peers.own, peers.stop);
    if (call.has_ended()) return;
    if (map.moves_rows()) {
      if (block.block() < senders_of(block)) {
        if (!await_previous_call(call, peers)) return;
        send(block);
      }
      if (!receive(block, call)) return;
    }
    leave(block, call, peers);
  }

 private:
  /// One warp per choice, in the order of their places, beginning with the next rank.
  template <typename Block>
  ACCORD_ON_DEVICE void send(Block& block) const {
    const std::uint64_t round = peers.round();
    const auto count = static_cast<std::size_t>(map.send_first[map.places]);
    const auto start = static_cast<std::size_t>(map.send_first[map.first_place[(map.rank + 1) % map.ranks]]);
    const std::size_t stride =
        warps_of(block) / static_cast<std::size_t>(block.blocks()) * static_cast<std::size_t>(senders_of(block));
    for (std::size_t i = first_of_warp(block); i < count; i += stride)
      send_choice(block, map.sends[(i + start) % count], round);
  }

  /// Sends the token's row to the rank of this choice, for all of the token's choices there. Does nothing unless this
  /// is the one of them with the lowest place.
  template <typename Block>
  ACCORD_ON_DEVICE void send_choice(Block& block, std::int64_t choice, std::uint64_t round) const {
    const auto token = static_cast<std::size_t>(map.token_of(choice));
    const std::int32_t* const places = map.place + map.my_choice(static_cast<std::int64_t>(token), 0);
    const std::int32_t first = map.place[choice], rank = map.holder[first];
    const auto is_there = [&](int k) { return places[k] >= 0 && map.holder[places[k]] == rank; };
    for (int k = 0; k < map.top_k; ++k)
      if (places[k] < first && is_there(k)) return;
    const auto top_k = static_cast<std::size_t>(map.top_k);
    const std::size_t there = static_cast<std::size_t>(map.rank) * static_cast<std::size_t>(map.max_tokens) + token;
    const RowBytes without_weights{.row = bytes.row, .scales = bytes.scales};
    copy_row(block, transit_at(peers, rank, there, 0, without_weights), row_at(tokens, token, 0, without_weights),
             without_weights);
    for (int k = 0; bytes.weight > 0 && k < map.top_k; ++k) {
      if (!is_there(k)) continue;
      const Rows to = transit_at(peers, rank, there, there * top_k + static_cast<std::size_t>(k), bytes);
      const ConstRows from = row_at(tokens, token, token * top_k + static_cast<std::size_t>(k), bytes);
      copy_bytes(block, to.weights, from.weights, bytes.weight);
    }
    block.sync_warp();
    for (int k = block.lane(); k < map.top_k; k += block.lanes()) {
      if (!is_there(k)) continue;
      std::uint64_t* const signals = peers.of<std::uint64_t>(rank, peers.at.to_experts);
      const std::int32_t local = places[k] - map.first_place[rank];
      count_sent(block, peers.sent + places[k], map.segment(map.rank, places[k]).rows(),
                 signals + map.rank * peers.at.max_local + local, round);
    }
  }

  /// Takes some slots at a time, in order: waits until their rows are here, then copies them. All rows are waited
  /// for, also those of slots without room, before peers may write here again. Padding is zero.
  template <typename Block>
  ACCORD_ON_DEVICE bool receive(Block& block, CallBlock<Block>& call) const {
    const std::int64_t rows = map.numbers->recv_rows, end = rows < room ? rows : room;
    const int warps = block.threads() / block.lanes();
    if (block.first() == 0) map.numbers->cut = rows - end;
    for (std::int64_t first = call.next_ticket() * warps; first < rows; first = call.next_ticket() * warps) {
      const std::int64_t many = rows - first < warps ? rows - first : warps;
      if (!call.await(many, peers.round(), [&](std::int64_t i) { return signal_of(map.sources[first + i]); }))
        return false;
      const std::int64_t slot = first + block.thread() / block.lanes();
      if (slot < end) fill_slot(block, static_cast<std::size_t>(slot));
    }
    return true;
  }

  /// Null for padding.
  ACCORD_ON_DEVICE const std::uint64_t* signal_of(std::int64_t choice) const {
    if (choice < 0) return nullptr;
    const std::int32_t local = map.place[choice] - map.first_place[map.rank];
    return peers.mine<std::uint64_t>(peers.at.to_experts) + map.rank_of(choice) * peers.at.max_local + local;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void fill_slot(Block& block, std::size_t slot) const {
    const std::int64_t choice = map.sources[slot];
    const Rows to = row_at(slots, slot, slot, bytes);
    if (choice < 0) return copy_row(block, to, {}, bytes);
    const auto top_k = static_cast<std::size_t>(map.top_k);
    const std::size_t here = static_cast<std::size_t>(map.rank_of(choice)) * static_cast<std::size_t>(map.max_tokens) +
                             static_cast<std::size_t>(map.token_of(choice));
    const std::size_t weight = here * top_k + static_cast<std::size_t>(choice % map.top_k);
    copy_row(block, to, transit_at(peers, peers.rank, here, weight, bytes), bytes);
  }
};

}  // namespace accord::expert
