#pragma once
// The kernels of prepare(), in launch order. Slots are numbered by chunks of choices: first the rows of each place in
// each chunk are counted, then the rows in all earlier chunks, then the position of each choice within its own chunk.

#include "expert/device/map.hpp"
#include "expert/device/meeting.hpp"
#include "expert/fingerprint.hpp"

namespace accord::expert {

/// Checks this rank's ids, and writes them to all ranks. Runs between AwaitRead and MeetPeers.
struct ShareRouting {
  static constexpr const char* kName = "expert_share_routing";
  static constexpr int kThreads = 256;
  Peers peers;
  const void* ids = nullptr;  ///< [tokens, top_k]
  bool wide = false;          ///< ids are int64, otherwise int32
  const float* weights = nullptr;
  std::int64_t tokens = 0;
  int top_k = 1, experts = 0;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    const auto end = static_cast<std::size_t>(tokens * top_k);
    for (std::size_t i = block.first(); i < end; i += block.stride()) {
      const std::int64_t id = id_at(i);
      std::int32_t expert = -1;
      if (id != -1 && (id < 0 || id >= experts))
        block.add(&peers.own->out_of_range, 1);
      else if (id != -1 && is_earlier(i, id))
        block.add(&peers.own->duplicates, 1);
      else
        expert = static_cast<std::int32_t>(id);
      const auto to = static_cast<std::size_t>(peers.rank * peers.at.choices) + i;
      for (int r = 0; r < peers.size; ++r) {
        peers.of<std::int32_t>(r, peers.at.ids)[to] = expert;
        if (weights != nullptr) peers.of<float>(r, peers.at.weights)[to] = weights[i];
      }
    }
  }

 private:
  ACCORD_ON_DEVICE std::int64_t id_at(std::size_t i) const {
    return wide ? static_cast<const std::int64_t*>(ids)[i] : static_cast<const std::int32_t*>(ids)[i];
  }
  ACCORD_ON_DEVICE bool is_earlier(std::size_t i, std::int64_t id) const {
    for (std::size_t j = i - i % static_cast<std::size_t>(top_k); j < i; ++j)
      if (id_at(j) == id) return true;
    return false;
  }
};

/// Finds the place of each choice of all ranks. LeavePeers may follow, because all data from other ranks has been
/// read.
struct PlaceChoices {
  static constexpr const char* kName = "expert_place_choices";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    const std::uint64_t* const words = peers.mine<std::uint64_t>(peers.at.routing);
    const auto choices = static_cast<std::size_t>(map.choices());
    for (std::size_t i = block.first(); i < choices; i += block.stride()) {
      const auto c = static_cast<std::int64_t>(i);
      const int rank = map.rank_of(c);
      const std::int64_t token = map.token_of(c);
      std::int32_t expert = -1, place = -1;
      if (token < static_cast<std::int64_t>(words[kRoutingWords * rank])) {
        const std::int64_t at = rank * peers.at.choices + token * map.top_k + c % map.top_k;
        expert = peers.mine<std::int32_t>(peers.at.ids)[at];
        if (map.weight != nullptr) map.weight[c] = peers.mine<float>(peers.at.weights)[at];
      }
      if (expert >= 0) {
        const std::int32_t first = map.first_replica[expert], count = map.first_replica[expert + 1] - first;
        place = map.replicas[first + (rank + token) % count];
      }
      map.expert[c] = expert;
      map.place[c] = place;
    }
    const auto rows = static_cast<std::size_t>(map.max_rows);
    for (std::size_t i = block.first(); i < rows; i += block.stride()) map.sources[i] = -1;
    for (std::size_t r = block.first(); r < static_cast<std::size_t>(map.ranks); r += block.stride())
      map.counted[r] = {static_cast<std::int64_t>(words[kRoutingWords * r]),
                        static_cast<std::int64_t>(words[kRoutingWords * r + 1]),
                        static_cast<std::int64_t>(words[kRoutingWords * r + 2]),
                        0,
                        0,
                        0};
  }
};

/// Numbering pass: over all rows, or again after rows were dropped by weight. The second pass does nothing if none
/// were dropped.
enum class Pass : std::uint8_t { kAll, kKept };

/// Loads the places of a chunk's choices into shared memory. All threads of the block must call it.
template <typename Block>
ACCORD_ON_DEVICE const std::int32_t* places_of_chunk(Block& block, const Map& map, std::int64_t chunk) {
  auto* const places = reinterpret_cast<std::int32_t*>(block.shared());
  block.sync();  // the previous chunk's places have been read
  for (int i = block.thread(); i < kChunk; i += block.threads()) {
    const std::int64_t c = chunk * kChunk + i;
    places[i] = c < map.choices() ? map.place[c] : -1;
  }
  block.sync();
  return places;
}

/// Number of choices before the i-th of a chunk that go to the same place.
ACCORD_ON_DEVICE inline std::int32_t position_in_chunk(const std::int32_t* places, int i) {
  std::int32_t before = 0;
  for (int j = 0; j < i; ++j) before += places[j] == places[i] ? 1 : 0;
  return before;
}

/// Counts the rows of each place in each chunk. Shared memory: kChunk int32.
struct CountChunks {
  static constexpr const char* kName = "expert_count_chunks";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  Pass pass = Pass::kAll;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers) || (pass == Pass::kKept && map.numbers->overflows == 0)) return;
    for (std::int64_t chunk = block.block(); chunk < map.chunks(); chunk += block.blocks()) {
      std::int32_t* const counts = map.chunk_rows + chunk * map.places;
      for (int p = block.thread(); p < map.places; p += block.threads()) counts[p] = 0;
      const std::int32_t* const places = places_of_chunk(block, map, chunk);
      for (int i = block.thread(); i < kChunk; i += block.threads()) {
        bool is_last = places[i] >= 0;
        for (int j = i + 1; is_last && j < kChunk; ++j) is_last = places[j] != places[i];
        if (is_last) counts[places[i]] = position_in_chunk(places, i) + 1;
      }
    }
  }
};

/// One warp per place: replaces each entry of chunk_rows with the rows of all earlier chunks.
struct ScanChunks {
  static constexpr const char* kName = "expert_scan_chunks";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  Pass pass = Pass::kAll;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers) || (pass == Pass::kKept && map.numbers->overflows == 0)) return;
    const auto lanes = static_cast<std::size_t>(block.lanes());
    const std::int64_t chunks = map.chunks();
    for (std::size_t p = block.first() / lanes; p < static_cast<std::size_t>(map.places); p += block.stride() / lanes) {
      std::int32_t before = 0;
      for (std::int64_t chunk = block.lane(); chunk - block.lane() < chunks; chunk += block.lanes()) {
        std::int32_t* const at = map.chunk_rows + chunk * map.places + static_cast<std::int64_t>(p);
        const std::int32_t own = chunk < chunks ? *at : 0;
        std::int32_t sum = own;
        for (int distance = 1; distance < block.lanes(); distance *= 2) {
          const bool adds = block.lane() >= distance;
          const std::int32_t lower = block.from_lane(sum, adds ? block.lane() - distance : block.lane());
          if (adds) sum += lower;
        }
        if (chunk < chunks) *at = before + sum - own;
        before += block.from_lane(sum, block.lanes() - 1);
      }
      if (block.lane() == 0) map.rows[p] = before;
    }
  }
};

/// One block: computes counts, offsets and the rows that each rank gets.
struct LayOut {
  static constexpr const char* kName = "expert_lay_out";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  Pass pass = Pass::kAll;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers) || (pass == Pass::kKept && map.numbers->overflows == 0)) return;
    std::uint64_t overflows = 0;
    for (int r = block.thread(); r < map.ranks; r += block.threads()) {
      std::int64_t offset = 0;
      for (std::int32_t p = map.first_place[r]; p < map.first_place[r + 1]; ++p) {
        map.counts[p] = map.padded(map.rows[p]);
        map.offsets[p] = offset;
        offset += map.counts[p];
        if (map.dropping == Dropping::kBySlot) {
          const std::int64_t room = map.capacity > map.offsets[p] ? map.capacity - map.offsets[p] : 0;
          if (map.counts[p] > room) map.counts[p] = room;
          if (map.rows[p] > room) map.rows[p] = room;
        }
      }
      RankCounts& counted = map.counted[r];
      if (pass == Pass::kAll) counted.total_rows = offset;
      const bool is_cut = map.dropping == Dropping::kBySlot && offset > map.capacity;
      counted.recv_rows = is_cut ? map.capacity : offset;
      if (map.overflows(r)) overflows = 1;
    }
    overflows = block.block_max(overflows);
    block.sync();
    if (block.thread() != 0) return;
    const RankCounts& mine = map.counted[map.rank];
    const bool blocked = overflows != 0 && map.dropping == Dropping::kNone;
    *map.numbers = {.recv_rows = blocked ? 0 : mine.recv_rows,
                    .overflows = static_cast<std::int64_t>(overflows),
                    .blocked = blocked ? 1 : 0,
                    .bad_ids = mine.out_of_range + mine.duplicates,
                    .cut = 0,
                    .fingerprint = 0};
  }
};

/// Numbers the slots, records the choice in each slot of this rank, and computes the fingerprint. If the policy is to
/// drop by slot, drops choices beyond the capacity. Shared memory: kChunk int32.
struct NumberSlots {
  static constexpr const char* kName = "expert_number_slots";
  static constexpr int kThreads = 256;
  Peers peers;
  Map map;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    std::uint64_t fingerprint = 0;
    for (std::size_t r = block.first(); r < static_cast<std::size_t>(map.ranks); r += block.stride())
      fingerprint += tokens_fingerprint(static_cast<int>(r), map.counted[r].tokens);
    for (std::int64_t chunk = block.block(); chunk < map.chunks(); chunk += block.blocks()) {
      const std::int32_t* const places = places_of_chunk(block, map, chunk);
      const std::int32_t* const before = map.chunk_rows + chunk * map.places;
      for (int i = block.thread(); i < kChunk; i += block.threads()) {
        const std::int32_t place = places[i];
        if (place < 0) continue;
        const std::int64_t c = chunk * kChunk + i;
        const std::int64_t slot = map.offsets[place] + before[place] + position_in_chunk(places, i);
        map.slot[c] = static_cast<std::int32_t>(slot);
        if (map.dropping == Dropping::kBySlot && slot >= map.capacity) {
          map.place[c] = -1;
          block.add(reinterpret_cast<std::uint64_t*>(&map.counted[map.rank_of(c)].dropped), 1);
          continue;
        }
        fingerprint += choice_fingerprint(map.rank_of(c), map.token_of(c), static_cast<int>(c % map.top_k), place);
        if (map.holder[place] == map.rank && slot < map.max_rows) map.sources[slot] = static_cast<std::int32_t>(c);
      }
    }
    fingerprint = block.block_sum(fingerprint);
    if (block.thread() == 0) block.add(&map.numbers->fingerprint, fingerprint);
  }
};

/// Finds the order in which the choices of each of this rank's tokens are added (token_tree.hpp). Two ids meet at the
/// highest bit in which they differ.
struct OrderChoices {
  static constexpr const char* kName = "expert_order_choices";
  static constexpr int kThreads = 128;
  Peers peers;
  Map map;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    const auto tokens = static_cast<std::size_t>(map.counted[map.rank].tokens);
    for (std::size_t token = block.first(); token < tokens; token += block.stride()) {
      const std::int64_t first = map.my_choice(static_cast<std::int64_t>(token), 0);
      const std::int32_t* const expert = map.expert + first;
      std::int32_t* const order = map.order + token * static_cast<std::size_t>(map.top_k);
      std::int32_t* const merges = map.merges + token * static_cast<std::size_t>(map.top_k);
      int count = 0;
      for (int k = 0; k < map.top_k; ++k) {
        if (map.place[first + k] < 0) continue;
        int at = count++;
        for (; at > 0 && expert[order[at - 1]] > expert[k]; --at) order[at] = order[at - 1];
        order[at] = k;
      }
      for (int i = count; i < map.top_k; ++i) order[i] = -1;
      write_merges(expert, order, count, merges);
    }
  }

 private:
  ACCORD_ON_DEVICE static void write_merges(const std::int32_t* expert, const std::int32_t* order, int count,
                                            std::int32_t* merges) {
    std::uint32_t gaps[kMaxWaiting];  // between waiting sums: all have different highest bits, as on a path
    int depth = 0;
    for (int i = 0; i < count; ++i) {
      const bool is_last = i + 1 == count;
      const std::uint32_t gap = is_last ? 0 : static_cast<std::uint32_t>(expert[order[i]] ^ expert[order[i + 1]]);
      merges[i] = 0;
      for (; depth > 0 && (is_last || gaps[depth - 1] < gap); --depth) ++merges[i];
      if (!is_last) gaps[depth++] = gap;
    }
  }
};

}  // namespace accord::expert
