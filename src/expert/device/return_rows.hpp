#pragma once
// The kernel of combine() and dispatch_backward(), where all ranks reach each other's memory. Each rank pushes the rows
// of its slots into the memory of the ranks of their tokens, by (token, k), and signals for each expert and each of
// these ranks when all rows between them are there. A rank adds up the rows of its tokens as soon as the signals of
// their experts have come.

#include "expert/device/map.hpp"
#include "expert/device/peers.hpp"
#include "expert/device/row_copies.hpp"
#include "expert/device/send_rows.hpp"
#include "expert/device/sum_rows.hpp"

namespace accord::expert {

struct ReturnRows {
  static constexpr const char* kName = "expert_return_rows";
  static constexpr int kThreads = 512, kMinBlocks = 2;
  Peers peers;
  Map map;
  ConstRows slots;
  std::int64_t room = 0;  ///< rows that fit into `slots`; the others count as zero
  RowBytes bytes;
  RowSums sums;
  std::byte* weights = nullptr;  ///< [tokens, top_k]: gets the weights that come back; zero without a choice; or null

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
  /// One warp per slot; each rank begins at another one, so that not all ranks send to the same rank at once.
  template <typename Block>
  ACCORD_ON_DEVICE void send(Block& block) const {
    const std::uint64_t round = peers.round();
    const auto rows = static_cast<std::size_t>(map.numbers->recv_rows);
    const std::size_t start = rows * static_cast<std::size_t>(map.rank) / static_cast<std::size_t>(map.ranks);
    const std::size_t stride =
        warps_of(block) / static_cast<std::size_t>(block.blocks()) * static_cast<std::size_t>(senders_of(block));
    if (block.first() == 0)
      map.numbers->cut = static_cast<std::int64_t>(rows) > room ? static_cast<std::int64_t>(rows) - room : 0;
    for (std::size_t i = first_of_warp(block); i < rows; i += stride) send_slot(block, (i + start) % rows, round);
  }

  template <typename Block>
  ACCORD_ON_DEVICE void send_slot(Block& block, std::size_t slot, std::uint64_t round) const {
    const std::int64_t choice = map.sources[slot];
    if (choice < 0) return;
    const int rank = map.rank_of(choice);
    const auto there = static_cast<std::size_t>(choice - rank * map.of_rank());
    copy_slot(block, transit_at(peers, rank, there, there, bytes), slots, slot, room, bytes);
    block.sync_warp();
    if (block.lane() != 0) return;
    const std::int32_t place = map.place[choice], local = place - map.first_place[map.rank];
    count_sent(block, peers.sent + rank * peers.at.max_local + local, map.segment(rank, place).rows(),
               peers.of<std::uint64_t>(rank, peers.at.to_tokens) + place, round);
  }

  /// Takes some tokens at a time: waits until all of their rows are here, then adds them up.
  template <typename Block>
  ACCORD_ON_DEVICE bool receive(Block& block, CallBlock<Block>& call) const {
    constexpr int kMaxTokens = 64, kRoundsPerTicket = 4;
    const std::int64_t tokens = map.counted[map.rank].tokens;
    const std::int64_t rounds = std::int64_t{block.threads()} * kRoundsPerTicket * sums.columns() / sums.hidden;
    const std::int64_t many = rounds < 1 ? 1 : rounds > kMaxTokens ? kMaxTokens : rounds;
    for (std::int64_t first = call.next_ticket() * many; first < tokens; first = call.next_ticket() * many) {
      const std::int64_t last = first + many < tokens ? first + many : tokens;
      const std::int32_t* const places = map.place + map.my_choice(first, 0);
      const auto signal_of = [&](std::int64_t i) -> const std::uint64_t* {
        return places[i] < 0 ? nullptr : peers.mine<std::uint64_t>(peers.at.to_tokens) + places[i];
      };
      if (!call.await((last - first) * map.top_k, peers.round(), signal_of)) return false;
      sums.add_up(map, first, last, static_cast<std::size_t>(block.thread()),
                  static_cast<std::size_t>(block.threads()));
      if (weights != nullptr) copy_weights(block, first, last, places);
    }
    return true;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void copy_weights(Block& block, std::int64_t first, std::int64_t last,
                                     const std::int32_t* places) const {
    const std::byte* const received = peers.mine<std::byte>(peers.at.row_weights);
    const auto begin = static_cast<std::size_t>(first * map.top_k), end = static_cast<std::size_t>(last * map.top_k);
    const auto step = static_cast<std::size_t>(block.threads());
    for (std::size_t i = begin + static_cast<std::size_t>(block.thread()); i < end; i += step)
      copy_weight(weights + i * bytes.weight, places[i - begin] >= 0 ? received + i * bytes.weight : nullptr,
                  bytes.weight == sizeof(double));
  }
};

}  // namespace accord::expert
