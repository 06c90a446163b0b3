#pragma once
// The kernels of groups whose rows travel in collectives of the communicator. Each rank packs its rows as records, a
// row with its scales and its weight, by receiver; a collective carries them; and each rank unpacks what it received.
// A rank sends its rows for the experts in the order of `sends`, and gets the rows for its tokens back in the same
// order. In both directions the holder of the experts has the records by rank, place and token.

#include "base/rounding.hpp"
#include "expert/device/map.hpp"
#include "expert/device/prepare_map.hpp"
#include "expert/device/row_copies.hpp"
#include "expert/device/sum_rows.hpp"

namespace accord::expert {

/// Layout of a record; offsets in bytes. Equal on all ranks, even if some omit scales or weights because they have
/// no elements of them.
struct RecordLayout {
  std::size_t scales = 0, weight = 0, bytes = 0;
};

/// `bytes`: with all parts that a call of this kind may have.
inline RecordLayout record_layout(const RowBytes& bytes) {
  const std::size_t scales = round_up(bytes.row, sizeof(float)),
                    weight = round_up(scales + bytes.scales, sizeof(double));
  return {.scales = scales, .weight = weight, .bytes = round_up(weight + bytes.weight, sizeof(device::Words))};
}

/// Records in memory, with the parts that the call has.
struct Records {
  std::byte* memory = nullptr;
  RecordLayout layout;
  RowBytes bytes;
  ACCORD_ON_DEVICE Rows at(std::size_t i) const {
    std::byte* const record = memory + i * layout.bytes;
    return {record, bytes.scales > 0 ? record + layout.scales : nullptr,
            bytes.weight > 0 ? record + layout.weight : nullptr};
  }
};

/// The routing of all ranks in one buffer, which an all_gather fills: for each rank the words, the ids and, if the map
/// has weights, the weights.
struct GatheredRouting {
  std::byte* memory = nullptr;
  std::size_t choices = 0;  ///< of each rank
  bool has_weights = false;

  ACCORD_ON_DEVICE static std::size_t ids() { return kRoutingWords * sizeof(std::uint64_t); }
  ACCORD_ON_DEVICE std::size_t weights() const { return ids() + choices * sizeof(std::int32_t); }
  /// Bytes of each rank.
  ACCORD_ON_DEVICE std::size_t stride() const {
    const std::size_t end = weights() + (has_weights ? choices * sizeof(float) : 0);
    return (end + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t) * sizeof(std::uint64_t);
  }
  ACCORD_ON_DEVICE SharedRouting shared() const {
    return {.memory = memory,
            .words = 0,
            .words_stride = stride(),
            .ids = ids(),
            .ids_stride = stride(),
            .weights = weights(),
            .weights_stride = stride()};
  }
};

/// Writes this rank's choices to its part of the buffer, whose words are zero.
struct WriteRouting {
  static constexpr const char* kName = "expert_write_routing";
  static constexpr int kThreads = 256;
  GatheredRouting to;
  RoutingInput input;
  int rank = 0;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    std::byte* const mine = to.memory + static_cast<std::size_t>(rank) * to.stride();
    auto* const words = reinterpret_cast<std::uint64_t*>(mine);
    auto* const ids = reinterpret_cast<std::int32_t*>(mine + GatheredRouting::ids());
    auto* const weights = reinterpret_cast<float*>(mine + to.weights());
    if (block.first() == 0) words[0] = static_cast<std::uint64_t>(input.tokens);
    read_choices(block, input, words + 1, words + 2, [&](std::size_t i, std::int32_t expert) {
      ids[i] = expert;
      if (input.weights != nullptr) weights[i] = input.weights[i];
    });
  }
};

/// Builds the map from the buffer.
struct BuildMap {
  static constexpr const char* kName = "expert_build_map";
  static constexpr int kThreads = PrepareMap::kThreads, kMinBlocks = 1;
  static constexpr std::size_t kShared = PrepareMap::kShared;
  GatheredRouting from;
  Map map;
  OwnWords* own = nullptr;
  const std::uint64_t* stop = nullptr;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (block.first() == 0) {
      *map.numbers = no_numbers();
      map.traffic[0] = -1;
    }
    CallBlock call(block, own, stop);
    if (call.has_ended() || !call.check_stop()) return;
    if (MapBuilder(block, call, map).build(from.shared())) (void)call.is_end_of_kernel();
  }
};

/// Packs the rows of this rank's tokens.
struct PackTokens {
  static constexpr const char* kName = "expert_pack_tokens";
  static constexpr int kThreads = 256;
  Map map;
  ConstRows tokens;
  Records records;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (!map.moves_rows()) return;
    const auto count = static_cast<std::size_t>(map.send_first[map.places]);
    for (std::size_t i = first_of_warp(block); i < count; i += warps_of(block)) {
      const std::int64_t choice = map.sends[i];
      const auto token = static_cast<std::size_t>(map.token_of(choice));
      const std::size_t weight =
          token * static_cast<std::size_t>(map.top_k) + static_cast<std::size_t>(choice % map.top_k);
      copy_row(block, records.at(i), row_at(tokens, token, weight, records.bytes), records.bytes);
    }
  }
};

/// The position of a slot's record; negative for padding.
ACCORD_ON_DEVICE inline std::int64_t record_of_slot(const Map& map, std::size_t slot) {
  const std::int64_t choice = map.sources[slot];
  if (choice < 0) return -1;
  const int rank = map.rank_of(choice);
  const std::int32_t place = map.place[choice], local = place - map.first_place[map.rank];
  const std::int64_t in_segment = static_cast<std::int64_t>(slot) - map.offsets[place] - map.segment(rank, place).first;
  return map.arrives_at[rank * map.local_places() + local] + in_segment;
}

/// Unpacks the rows that arrived into their slots. Padding is zero.
struct UnpackSlots {
  static constexpr const char* kName = "expert_unpack_slots";
  static constexpr int kThreads = 256;
  Map map;
  Rows slots;
  std::int64_t room = 0;
  Records records;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (!map.moves_rows()) return;
    const std::int64_t rows = map.numbers->recv_rows, end = rows < room ? rows : room;
    if (block.first() == 0) map.numbers->cut = rows - end;
    for (std::size_t slot = first_of_warp(block); slot < static_cast<std::size_t>(end); slot += warps_of(block)) {
      const std::int64_t at = record_of_slot(map, slot);
      const ConstRows from = at < 0 ? ConstRows{} : records.at(static_cast<std::size_t>(at));
      copy_row(block, row_at(slots, slot, slot, records.bytes), from, records.bytes);
    }
  }
};

/// Packs the rows of this rank's slots.
struct PackSlots {
  static constexpr const char* kName = "expert_pack_slots";
  static constexpr int kThreads = 256;
  Map map;
  ConstRows slots;
  std::int64_t room = 0;
  Records records;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (!map.moves_rows()) return;
    const std::int64_t rows = map.numbers->recv_rows;
    if (block.first() == 0) map.numbers->cut = rows > room ? rows - room : 0;
    for (std::size_t slot = first_of_warp(block); slot < static_cast<std::size_t>(rows); slot += warps_of(block)) {
      const std::int64_t at = record_of_slot(map, slot);
      if (at >= 0) copy_slot(block, records.at(static_cast<std::size_t>(at)), slots, slot, room, records.bytes);
    }
  }
};

/// Adds up the rows that came back for this rank's tokens.
struct SumRecords {
  static constexpr const char* kName = "expert_sum_records";
  static constexpr int kThreads = 256;
  Map map;
  RowSums sums;
  Records records;
  std::byte* weights = nullptr;  ///< as in ReturnRows
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (!map.moves_rows()) return;
    const std::int64_t tokens = map.counted[map.rank].tokens;
    sums.add_up(map, 0, tokens, block.first(), block.stride());
    if (weights == nullptr) return;
    const std::int32_t* const places = map.place + map.my_choice(0, 0);
    for (std::size_t i = block.first(); i < static_cast<std::size_t>(tokens * map.top_k); i += block.stride()) {
      const std::size_t bytes = records.bytes.weight;
      const std::byte* const from =
          places[i] >= 0 ? records.at(static_cast<std::size_t>(map.sent_at[i])).weights : nullptr;
      copy_weight(weights + i * bytes, from, bytes == sizeof(double));
    }
  }
};

}  // namespace accord::expert
