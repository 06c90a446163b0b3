#pragma once
// Dropping by weight, without sorting: a choice has a key, which is higher for a higher weight and, of equal ones, for an earlier choice,
// and no two have the same. What a rank keeps is what has a key from some threshold on: the lowest one with which the rest fits with its
// padding. It is found by bisection, each step of which counts the rows of the rank's places. Then each place takes back those with the
// highest keys below that fit into its padding: the same by a bisection of its own.

#include <bit>

#include "expert/device/map.hpp"
#include "expert/device/meeting.hpp"

namespace accord::expert {

/// A NaN is the lowest weight, as -infinity; -0 is 0.
ACCORD_ON_DEVICE inline std::uint64_t key_of(const Map& map, std::int64_t choice) {
  const float weight = map.weight[choice];
  auto bits = std::bit_cast<std::uint32_t>(weight);
  if (weight != weight) bits = 0xFF800000U;
  if (weight == 0.0F) bits = 0;
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (std::uint64_t{ordered} << 32) | (0xFFFFFFFFU - static_cast<std::uint32_t>(choice));
}

/// A block for each rank that gets too much: its threshold, and how many rows each of its places keeps.
struct DropLowest {
  static constexpr const char* kName = "expert_drop_lowest";
  static constexpr int kThreads = 512;
  Peers peers;
  Map map;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    for (int r = block.block(); r < map.ranks; r += block.blocks()) {
      std::uint64_t low = 0;  // with which there is too much
      std::uint64_t threshold = ~std::uint64_t{0};
      if (!map.overflows(r)) threshold = 0;
      while (threshold - low > 1) {
        const std::uint64_t middle = low + (threshold - low) / 2;
        if (rows_from(block, r, middle) <= map.capacity)
          threshold = middle;
        else
          low = middle;
      }
      if (threshold > 0) (void)rows_from(block, r, threshold);
      if (block.thread() == 0) map.threshold[r] = threshold;
    }
  }

 private:
  /// Rows of rank `r` with their padding if those with this key and higher ones are kept. All threads of the block.
  template <typename Block>
  ACCORD_ON_DEVICE std::int64_t rows_from(Block& block, int r, std::uint64_t key) const {
    const std::int32_t first = map.first_place[r], last = map.first_place[r + 1];
    for (std::int32_t p = first + block.thread(); p < last; p += block.threads()) map.kept[p] = 0;
    block.sync();
    for (std::int64_t c = block.thread(); c < map.choices(); c += block.threads()) {
      const std::int32_t place = map.place[c];
      if (place >= first && place < last && key_of(map, c) >= key) block.add(map.kept + place, 1);
    }
    block.sync();
    std::int64_t rows = 0;
    for (std::int32_t p = first + block.thread(); p < last; p += block.threads())
      rows += map.padded(static_cast<std::int64_t>(block.load(map.kept + p)));
    return block.block_sum(rows);
  }
};

/// A block for each place of such a rank: which of those below the threshold come back; the others are dropped.
struct TakeBack {
  static constexpr const char* kName = "expert_take_back";
  static constexpr int kThreads = 512;
  Peers peers;
  Map map;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    for (std::int32_t place = block.block(); place < map.places; place += block.blocks()) {
      const std::uint64_t threshold = map.threshold[map.holder[place]];
      if (threshold == 0) continue;
      const auto kept = static_cast<std::int64_t>(map.kept[place]);
      const std::int64_t room = map.padded(kept) - kept;
      std::uint64_t low = 0,
                    from = threshold;  // from `low` on there are too many, from `from` on there is room for all
      if (between(block, place, 0, threshold) <= room) from = 0;
      while (from - low > 1) {
        const std::uint64_t middle = low + (from - low) / 2;
        if (between(block, place, middle, threshold) <= room)
          from = middle;
        else
          low = middle;
      }
      for (std::int64_t c = block.thread(); c < map.choices(); c += block.threads()) {
        if (map.place[c] != place || key_of(map, c) >= from) continue;
        map.place[c] = -1;
        block.add(reinterpret_cast<std::uint64_t*>(&map.counted[map.rank_of(c)].dropped), 1);
      }
    }
  }

 private:
  /// Choices of a place with a key in [first, last). All threads of the block.
  template <typename Block>
  ACCORD_ON_DEVICE std::int64_t between(Block& block, std::int32_t place, std::uint64_t first,
                                        std::uint64_t last) const {
    std::int64_t count = 0;
    for (std::int64_t c = block.thread(); c < map.choices(); c += block.threads()) {
      if (map.place[c] != place) continue;
      const std::uint64_t key = key_of(map, c);
      count += key >= first && key < last ? 1 : 0;
    }
    return block.block_sum(count);
  }
};

}  // namespace accord::expert
