#pragma once
// The kernels that move rows, one warp per row. To the experts: each rank stages its tokens where all ranks can read
// them, the ranks meet, and each rank reads the rows of its slots. Back: each rank writes the rows of its slots to
// the ranks of their tokens, by (token, k), the ranks meet, and each rank adds up the rows it received
// (sum_kernel.hpp).

#include "expert/device/map.hpp"
#include "expert/device/meeting.hpp"
#include "expert/rows.hpp"

namespace accord::expert {

/// Copies `bytes` with the lanes of a warp, or clears them if `from` is null. Several reads are in flight at a time,
/// because the source may be far away.
template <typename Unit, typename Block>
ACCORD_ON_DEVICE void copy_units(Block& block, std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kAhead = 4;
  auto* const target = reinterpret_cast<Unit*>(to);
  const auto* const source = reinterpret_cast<const Unit*>(from);
  const auto lanes = static_cast<std::size_t>(block.lanes());
  const std::size_t count = bytes / sizeof(Unit);
  auto i = static_cast<std::size_t>(block.lane());
  for (; source != nullptr && i + (kAhead - 1) * lanes < count; i += kAhead * lanes) {
    Unit ahead[kAhead];
    for (std::size_t a = 0; a < kAhead; ++a) ahead[a] = source[i + a * lanes];
    for (std::size_t a = 0; a < kAhead; ++a) target[i + a * lanes] = ahead[a];
  }
  for (; i < count; i += lanes) target[i] = source != nullptr ? source[i] : Unit{};
}

template <typename Block>
ACCORD_ON_DEVICE void copy_row(Block& block, std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t low = reinterpret_cast<std::size_t>(to) | reinterpret_cast<std::size_t>(from) | bytes;
  if (low % sizeof(device::Words) == 0)
    copy_units<device::Words>(block, to, from, bytes);
  else if (low % sizeof(std::uint32_t) == 0)
    copy_units<std::uint32_t>(block, to, from, bytes);
  else
    copy_units<std::byte>(block, to, from, bytes);
}

/// Rows that a warp handles: for (i = first_row(block); i < rows; i += row_stride(block)).
template <typename Block>
ACCORD_ON_DEVICE std::size_t first_row(Block& block) {
  return block.first() / static_cast<std::size_t>(block.lanes());
}
template <typename Block>
ACCORD_ON_DEVICE std::size_t row_stride(Block& block) {
  return block.stride() / static_cast<std::size_t>(block.lanes());
}

/// Copies row `i` of `from` to row `j` of `to`, or clears it where `from` has none. `weight`: index of the row's
/// weight in `from`.
template <typename Block>
ACCORD_ON_DEVICE void copy_all(Block& block, const Rows& to, std::size_t j, const ConstRows& from, std::size_t i,
                               std::size_t weight, const RowBytes& bytes) {
  const auto from_row = [](const std::byte* rows, std::size_t row, std::size_t size) {
    return rows != nullptr ? rows + row * size : nullptr;
  };
  copy_row(block, to.rows + j * bytes.row, from_row(from.rows, i, bytes.row), bytes.row);
  if (to.scales != nullptr)
    copy_row(block, to.scales + j * bytes.scales, from_row(from.scales, i, bytes.scales), bytes.scales);
  if (to.weights != nullptr)
    copy_row(block, to.weights + j * bytes.weight, from_row(from.weights, weight, bytes.weight), bytes.weight);
}

/// The rows in transit in a rank's memory, with the scales and weights that the call has.
ACCORD_ON_DEVICE inline Rows rows_of(const Peers& peers, int rank, const RowBytes& bytes) {
  return {peers.memory[rank] + peers.at.rows, bytes.scales > 0 ? peers.memory[rank] + peers.at.scales : nullptr,
          bytes.weight > 0 ? peers.memory[rank] + peers.at.row_weights : nullptr};
}

/// Stages this rank's tokens, with [tokens, top_k] weights, where all ranks can read them. Runs after AwaitRead.
struct StageTokens {
  static constexpr const char* kName = "expert_stage_tokens";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  ConstRows tokens;
  RowBytes bytes;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers) || map.numbers->blocked != 0) return;
    const Rows staged = rows_of(peers, peers.rank, bytes);
    const auto count = static_cast<std::size_t>(map.counted[map.rank].tokens);
    for (std::size_t t = first_row(block); t < count; t += row_stride(block)) {
      copy_all(block, {staged.rows, staged.scales, nullptr}, t, tokens, t, 0, bytes);
      if (bytes.weight == 0 || tokens.weights == nullptr) continue;
      const std::size_t of_token = bytes.weight * static_cast<std::size_t>(map.top_k);
      copy_row(block, staged.weights + t * of_token, tokens.weights + t * of_token, of_token);
    }
  }
};

/// Reads the rows of this rank's slots from where their ranks staged them. Padding is zero.
struct PullSlots {
  static constexpr const char* kName = "expert_pull_slots";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  Rows slots;
  std::int64_t room = 0;  ///< rows that fit into `slots`
  RowBytes bytes;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers) || map.numbers->blocked != 0) return;
    const std::int64_t rows = map.numbers->recv_rows, end = rows < room ? rows : room;
    if (block.first() == 0) map.numbers->cut = rows - end;
    for (std::size_t slot = first_row(block); slot < static_cast<std::size_t>(end); slot += row_stride(block)) {
      const std::int64_t c = map.sources[slot];
      if (c < 0) {
        copy_all(block, slots, slot, {}, 0, 0, bytes);
        continue;
      }
      const auto token = static_cast<std::size_t>(map.token_of(c));
      const std::size_t weight = token * static_cast<std::size_t>(map.top_k) + static_cast<std::size_t>(c % map.top_k);
      copy_all(block, slots, slot, rows_of(peers, map.rank_of(c), bytes), token, weight, bytes);
    }
  }
};

/// Writes the rows of this rank's slots to the ranks of their tokens. Rows that do not fit into `slots` count as
/// zero; missing scales count as 1. Runs after AwaitRead.
struct PushSlots {
  static constexpr const char* kName = "expert_push_slots";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  ConstRows slots;
  std::int64_t room = 0;
  RowBytes bytes;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers) || map.numbers->blocked != 0) return;
    const auto rows = static_cast<std::size_t>(map.numbers->recv_rows), end = static_cast<std::size_t>(room);
    if (block.first() == 0) map.numbers->cut = rows > end ? static_cast<std::int64_t>(rows - end) : 0;
    for (std::size_t slot = first_row(block); slot < rows; slot += row_stride(block)) {
      const std::int64_t c = map.sources[slot];
      if (c < 0) continue;
      const Rows there = rows_of(peers, map.rank_of(c), bytes);
      const std::size_t to = static_cast<std::size_t>(map.token_of(c)) * static_cast<std::size_t>(map.top_k) +
                             static_cast<std::size_t>(c % map.top_k);
      copy_all(block, there, to, slot < end ? slots : ConstRows{}, slot, slot, bytes);
      if (bytes.scales > 0 && slots.scales == nullptr) fill_scales(block, there.scales + to * bytes.scales);
    }
  }

 private:
  template <typename Block>
  ACCORD_ON_DEVICE void fill_scales(Block& block, std::byte* to) const {
    block.sync_warp();  // copy_all() has cleared the scales
    const auto lanes = static_cast<std::size_t>(block.lanes());
    for (auto i = static_cast<std::size_t>(block.lane()); i < bytes.scales / sizeof(float); i += lanes)
      reinterpret_cast<float*>(to)[i] = 1.0F;
  }
};

/// Copies the [tokens, top_k] weights that came back with the rows; zero without a choice.
struct CopyWeights {
  static constexpr const char* kName = "expert_copy_weights";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  std::byte* weights = nullptr;
  std::size_t bytes = 0;  ///< of one weight
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers) || map.numbers->blocked != 0) return;
    const std::byte* const received = peers.mine<std::byte>(peers.at.row_weights);
    const auto count = static_cast<std::size_t>(map.counted[map.rank].tokens * map.top_k);
    for (std::size_t i = first_row(block); i < count; i += row_stride(block)) {
      const bool is_kept = map.place[map.my_choice(0, 0) + static_cast<std::int64_t>(i)] >= 0;
      copy_row(block, weights + i * bytes, is_kept ? received + i * bytes : nullptr, bytes);
    }
  }
};

}  // namespace accord::expert
