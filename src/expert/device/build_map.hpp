#pragma once
// Builds a routing map from the ids of all ranks: steps for all blocks of a kernel, which meet between them. Slots are
// numbered by chunks of choices: first the rows of each place in each chunk are counted, then the rows in all earlier
// chunks, then the position of each choice within its own chunk. A chunk has choices of one rank, so the rows of each
// rank for each place follow from the same counts.

#include "expert/device/call_block.hpp"
#include "expert/device/drop_lowest.hpp"
#include "expert/device/lane_sums.hpp"
#include "expert/device/map.hpp"
#include "expert/fingerprint.hpp"

namespace accord::expert {

/// The routing of all ranks, as each rank has it.
struct SharedRouting {
  const std::byte* memory = nullptr;
  std::size_t words = 0, words_stride = 0;      ///< tokens, ids out of range, duplicates of rank 0; to the next rank
  std::size_t ids = 0, ids_stride = 0;          ///< [tokens, top_k] int32
  std::size_t weights = 0, weights_stride = 0;  ///< the same shape in float32; read if the map has weights

  template <typename T>
  ACCORD_ON_DEVICE const T* at(int rank, std::size_t first, std::size_t stride) const {
    return reinterpret_cast<const T*>(memory + first + static_cast<std::size_t>(rank) * stride);
  }
};

/// Numbering pass: over all rows, or again after rows were dropped by weight.
enum class Pass : std::uint8_t { kAll, kKept };

/// Shared memory: kChunk int32.
template <typename Block>
class MapBuilder {
 public:
  ACCORD_ON_DEVICE MapBuilder(Block& block, CallBlock<Block>& call, const Map& map)
      : block_(block), call_(call), map_(map), warps_(block.threads() / block.lanes()) {}

  /// All blocks call it; the ids of all ranks must be there. Returns false if a wait was ended.
  ACCORD_ON_DEVICE bool build(const SharedRouting& routing) {
    prepare(routing);
    if (!lay_out<Pass::kAll>([&](std::int64_t c, int rank, std::int64_t i) { return place(routing, c, rank, i); }))
      return false;
    if (map_.dropping == Dropping::kByWeight && map_.numbers->overflows != 0) {
      if (!DropLowest<Block>(block_, call_, map_).run()) return false;
      if (!lay_out<Pass::kKept>([&](std::int64_t c, int, std::int64_t) { return map_.place[c]; })) return false;
    }
    number_slots();
    if (!call_.sync_blocks()) return false;
    order_choices();
    return true;
  }

 private:
  /// Never trusts a number of another rank, here and in place(): it is arbitrary if the exchange has failed.
  ACCORD_ON_DEVICE void prepare(const SharedRouting& routing) const {
    for (std::size_t i = block_.first(); i < static_cast<std::size_t>(map_.max_rows); i += block_.stride())
      map_.sources[i] = -1;
    for (std::size_t r = block_.first(); r < static_cast<std::size_t>(map_.ranks); r += block_.stride()) {
      const auto* const words = routing.at<std::uint64_t>(static_cast<int>(r), routing.words, routing.words_stride);
      const bool is_possible = words[0] <= static_cast<std::uint64_t>(map_.max_tokens);
      map_.counted[r] = {is_possible ? static_cast<std::int64_t>(words[0]) : 0,
                         static_cast<std::int64_t>(words[1]),
                         static_cast<std::int64_t>(words[2]),
                         0,
                         0,
                         0};
    }
  }

  /// Stores a choice and its weight, and returns its place.
  ACCORD_ON_DEVICE std::int32_t place(const SharedRouting& routing, std::int64_t c, int rank, std::int64_t i) const {
    const auto token = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(map_.top_k);
    std::int32_t expert = -1, place = -1;
    if (token < routing.at<std::uint64_t>(rank, routing.words, routing.words_stride)[0]) {
      expert = routing.at<std::int32_t>(rank, routing.ids, routing.ids_stride)[i];
      if (map_.weight != nullptr) map_.weight[c] = routing.at<float>(rank, routing.weights, routing.weights_stride)[i];
    }
    if (expert < 0 || expert >= map_.experts) expert = -1;
    if (expert >= 0) {
      const std::int32_t first = map_.first_replica[expert];
      const auto count = static_cast<std::uint32_t>(map_.first_replica[expert + 1] - first);
      place = map_.replicas[first + static_cast<std::int32_t>((static_cast<std::uint32_t>(rank) + token) % count)];
    }
    map_.expert[c] = expert;
    map_.place[c] = place;
    return place;
  }

  /// Computes chunk_rows, rows, counts, offsets and the rows that each rank gets. `place_of`: the place of a choice,
  /// by its number, its rank and its position among those of the rank.
  template <Pass kPass, typename PlaceOf>
  ACCORD_ON_DEVICE bool lay_out(PlaceOf place_of) {
    for (std::int64_t chunk = block_.block(); chunk < map_.chunks(); chunk += block_.blocks())
      count_chunk(chunk, load_places(chunk, place_of));
    if (!call_.sync_blocks()) return false;
    scan_chunks();
    if (!call_.sync_blocks()) return false;
    if (block_.block() == 0) lay_out_places(kPass);
    return call_.sync_blocks();
  }

  /// Loads the places of a chunk's choices into shared memory.
  template <typename PlaceOf>
  ACCORD_ON_DEVICE const std::int32_t* load_places(std::int64_t chunk, PlaceOf place_of) const {
    auto* const places = reinterpret_cast<std::int32_t*>(block_.shared());
    const auto rank = static_cast<int>(chunk / map_.chunks_of_rank());
    const std::int64_t first = chunk % map_.chunks_of_rank() * kChunk;
    block_.sync();  // the previous chunk's places have been read
    for (int i = block_.thread(); i < kChunk; i += block_.threads()) {
      const std::int64_t of_rank = first + i;
      places[i] = of_rank < map_.of_rank() ? place_of(rank * map_.of_rank() + of_rank, rank, of_rank) : -1;
    }
    block_.sync();
    return places;
  }

  /// Number of choices before the i-th of a chunk that go to the same place.
  ACCORD_ON_DEVICE static std::int32_t position_in_chunk(const std::int32_t* places, int i) {
    std::int32_t before = 0;
    for (int j = 0; j < i; ++j) before += places[j] == places[i] ? 1 : 0;
    return before;
  }

  ACCORD_ON_DEVICE void count_chunk(std::int64_t chunk, const std::int32_t* places) const {
    std::int32_t* const counts = map_.chunk_rows + chunk * map_.places;
    for (int p = block_.thread(); p < map_.places; p += block_.threads()) counts[p] = 0;
    block_.sync();
    for (int i = block_.thread(); i < kChunk; i += block_.threads()) {
      bool is_last = places[i] >= 0;
      for (int j = i + 1; is_last && j < kChunk; ++j) is_last = places[j] != places[i];
      if (is_last) counts[places[i]] = position_in_chunk(places, i) + 1;
    }
  }

  /// One warp per place: replaces each entry of chunk_rows with the rows of all earlier chunks.
  ACCORD_ON_DEVICE void scan_chunks() const {
    const auto lanes = static_cast<std::size_t>(block_.lanes());
    const std::int64_t chunks = map_.chunks();
    for (std::size_t p = block_.first() / lanes; p < static_cast<std::size_t>(map_.places);
         p += block_.stride() / lanes) {
      std::int32_t before = 0;
      for (std::int64_t chunk = block_.lane(); chunk - block_.lane() < chunks; chunk += block_.lanes()) {
        std::int32_t* const at = map_.chunk_rows + chunk * map_.places + static_cast<std::int64_t>(p);
        const std::int32_t own = chunk < chunks ? *at : 0, sum = sum_of_lanes_up_to(block_, own);
        if (chunk < chunks) *at = before + sum - own;
        before += block_.from_lane(sum, block_.lanes() - 1);
      }
      if (block_.lane() != 0) continue;
      map_.rows[p] = before;
      map_.chunk_rows[chunks * map_.places + static_cast<std::int64_t>(p)] = before;
    }
  }

  /// One block: one warp per rank lays out its places, then one warp lists where this rank's rows go.
  ACCORD_ON_DEVICE void lay_out_places(Pass pass) const {
    std::uint64_t overflows = 0;
    for (int r = block_.thread() / block_.lanes(); r < map_.ranks; r += warps_) {
      const std::int64_t rows = lay_out_rank(r);
      RankCounts& counted = map_.counted[r];
      if (block_.lane() == 0) {
        if (pass == Pass::kAll) counted.total_rows = rows;
        const bool is_cut = map_.dropping == Dropping::kBySlot && rows > map_.capacity;
        counted.recv_rows = is_cut ? map_.capacity : rows;
      }
      block_.sync_warp();
      if (map_.overflows(r)) overflows = 1;
    }
    overflows = block_.block_max(overflows);
    block_.sync();
    const bool blocked = overflows != 0 && map_.dropping == Dropping::kNone;
    if (block_.thread() < block_.lanes()) list_traffic(blocked);
    if (block_.thread() != 0) return;
    const RankCounts& mine = map_.counted[map_.rank];
    *map_.numbers = {.recv_rows = blocked ? 0 : mine.recv_rows,
                     .overflows = static_cast<std::int64_t>(overflows),
                     .blocked = blocked ? 1 : 0,
                     .bad_ids = mine.out_of_range + mine.duplicates,
                     .cut = 0,
                     .fingerprint = 0};
  }

  /// One warp: computes counts and offsets, and cuts the rows of places that are beyond the capacity if those are
  /// dropped. Returns the rows with padding.
  ACCORD_ON_DEVICE std::int64_t lay_out_rank(int r) const {
    std::int64_t before = 0;
    const std::int32_t last = map_.first_place[r + 1];
    for (std::int32_t first = map_.first_place[r]; first < last; first += block_.lanes()) {
      const std::int32_t p = first + block_.lane();
      const std::int64_t own = p < last ? map_.padded(map_.rows[p]) : 0, sum = sum_of_lanes_up_to(block_, own);
      const std::int64_t offset = before + sum - own;
      before += block_.from_lane(sum, block_.lanes() - 1);
      if (p >= last) continue;
      map_.counts[p] = own;
      map_.offsets[p] = offset;
      if (map_.dropping != Dropping::kBySlot) continue;
      const std::int64_t room = map_.capacity > offset ? map_.capacity - offset : 0;
      if (own > room) map_.counts[p] = room;
      if (map_.rows[p] > room) map_.rows[p] = room;
    }
    return before;
  }

  /// One warp: where this rank's rows for each place begin among all that it sends; for collectives also where the
  /// rows of each rank for each of this rank's places arrive, and the rows between this rank and all others.
  ACCORD_ON_DEVICE void list_traffic(bool blocked) const {
    const auto sum_up = [&](std::int64_t count, auto rows_of, std::int32_t* to) {
      std::int32_t before = 0;
      for (std::int64_t first = 0; first < count; first += block_.lanes()) {
        const std::int64_t i = first + block_.lane();
        const std::int32_t own = i < count ? static_cast<std::int32_t>(rows_of(i)) : 0;
        const std::int32_t sum = sum_of_lanes_up_to(block_, own);
        if (i < count) to[i] = before + sum - own;
        before += block_.from_lane(sum, block_.lanes() - 1);
      }
      return before;
    };
    const std::int32_t sent = sum_up(
        map_.places, [&](std::int64_t p) { return map_.segment(map_.rank, static_cast<std::int32_t>(p)).rows(); },
        map_.send_first);
    if (block_.lane() == 0) map_.send_first[map_.places] = sent;
    if (map_.traffic == nullptr) return;
    const std::int32_t local = map_.local_places(), first_place = map_.first_place[map_.rank];
    const std::int32_t received = sum_up(
        std::int64_t{map_.ranks} * local,
        [&](std::int64_t i) {
          return map_.segment(static_cast<int>(i / local), first_place + static_cast<std::int32_t>(i % local)).rows();
        },
        map_.arrives_at);
    block_.sync_warp();
    for (int r = block_.lane(); r < map_.ranks; r += block_.lanes()) {
      const std::int64_t to = map_.send_first[map_.first_place[r + 1]] - map_.send_first[map_.first_place[r]];
      const std::int32_t end = r + 1 < map_.ranks && local > 0 ? map_.arrives_at[(r + 1) * local] : received;
      const std::int64_t from = local > 0 ? end - map_.arrives_at[r * local] : 0;
      map_.traffic[r] = blocked ? 0 : to;
      map_.traffic[map_.ranks + r] = blocked ? 0 : from;
    }
  }

  /// Numbers the slots, records the choice in each slot of this rank and the order of its own choices, and computes
  /// the fingerprint. If the policy is to drop by slot, drops choices beyond the capacity.
  ACCORD_ON_DEVICE void number_slots() const {
    std::uint64_t fingerprint = 0;
    for (std::size_t r = block_.first(); r < static_cast<std::size_t>(map_.ranks); r += block_.stride())
      fingerprint += tokens_fingerprint(static_cast<int>(r), map_.counted[r].tokens);
    for (std::int64_t chunk = block_.block(); chunk < map_.chunks(); chunk += block_.blocks()) {
      const std::int32_t* const places =
          load_places(chunk, [&](std::int64_t c, int, std::int64_t) { return map_.place[c]; });
      const auto rank = static_cast<int>(chunk / map_.chunks_of_rank());
      const std::int64_t first = chunk % map_.chunks_of_rank() * kChunk;
      for (int i = block_.thread(); i < kChunk; i += block_.threads()) {
        const std::int32_t place = places[i];
        if (place < 0) continue;
        const std::int64_t c = rank * map_.of_rank() + first + i;
        const std::int64_t in_place = map_.chunk_rows[chunk * map_.places + place] + position_in_chunk(places, i);
        const std::int64_t slot = map_.offsets[place] + in_place;
        map_.slot[c] = static_cast<std::int32_t>(slot);
        if (map_.dropping == Dropping::kBySlot && slot >= map_.capacity) {
          map_.place[c] = -1;
          block_.add(reinterpret_cast<std::uint64_t*>(&map_.counted[rank].dropped), 1);
          continue;
        }
        fingerprint +=
            choice_fingerprint(rank, (first + i) / map_.top_k, static_cast<int>((first + i) % map_.top_k), place);
        if (map_.holder[place] == map_.rank && slot < map_.max_rows) map_.sources[slot] = static_cast<std::int32_t>(c);
        if (rank != map_.rank) continue;
        const std::int64_t at = map_.send_first[place] + in_place - map_.segment(rank, place).first;
        map_.sends[at] = static_cast<std::int32_t>(c);
        if (map_.sent_at != nullptr) map_.sent_at[first + i] = static_cast<std::int32_t>(at);
      }
    }
    fingerprint = block_.block_sum(fingerprint);
    if (block_.thread() == 0) block_.add(&map_.numbers->fingerprint, fingerprint);
  }

  /// Finds the order in which the choices of each of this rank's tokens are added (token_tree.hpp). Two ids meet at
  /// the highest bit in which they differ.
  ACCORD_ON_DEVICE void order_choices() const {
    const auto tokens = static_cast<std::size_t>(map_.counted[map_.rank].tokens);
    for (std::size_t token = block_.first(); token < tokens; token += block_.stride()) {
      const std::int64_t first = map_.my_choice(static_cast<std::int64_t>(token), 0);
      const std::int32_t* const expert = map_.expert + first;
      std::int32_t* const order = map_.order + token * static_cast<std::size_t>(map_.top_k);
      std::int32_t* const merges = map_.merges + token * static_cast<std::size_t>(map_.top_k);
      int count = 0;
      for (int k = 0; k < map_.top_k; ++k) {
        if (map_.place[first + k] < 0) continue;
        int at = count++;
        for (; at > 0 && expert[order[at - 1]] > expert[k]; --at) order[at] = order[at - 1];
        order[at] = k;
      }
      for (int i = count; i < map_.top_k; ++i) order[i] = -1;
      write_merges(expert, order, count, merges);
    }
  }

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

  Block& block_;
  CallBlock<Block>& call_;
  const Map& map_;
  const int warps_;
};

}  // namespace accord::expert
