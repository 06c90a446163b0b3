#pragma once
// Drops choices by weight without sorting. Each choice has a unique key, which is higher for a higher weight and, for
// equal weights, for an earlier choice. A rank keeps the choices whose key is at least a threshold: the lowest
// threshold for which they fit, padding included. The threshold is found by bisection, and each step counts the rows
// of the rank's places. Then each place restores the choices with the highest keys below the threshold that fit
// into its padding, found by a bisection of its own.

#include <bit>

#include "expert/device/map.hpp"
#include "expert/device/meeting.hpp"

namespace accord::expert {

/// Key of a choice. A NaN is the lowest weight, like -infinity; -0 equals 0.
ACCORD_ON_DEVICE inline std::uint64_t key_of(const Map& map, std::int64_t choice) {
  const float weight = map.weight[choice];
  auto bits = std::bit_cast<std::uint32_t>(weight);
  if (weight != weight) bits = 0xFF800000U;
  if (weight == 0.0F) bits = 0;
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (std::uint64_t{ordered} << 32) | (0xFFFFFFFFU - static_cast<std::uint32_t>(choice));
}

/// One block per overflowing rank: finds its threshold, and how many rows each of its places keeps.
struct DropLowest {
  static constexpr const char* kName = "expert_drop_lowest";
  static constexpr int kThreads = 512;
  Peers peers;
  Map map;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers)) return;
    for (int r = block.block(); r < map.ranks; r += block.blocks()) {
      std::uint64_t low = 0;  // a key with which too many rows are kept
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
  /// Rows of rank `r`, padding included, if choices with this key or a higher one are kept. All threads of the block
  /// must call it.
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

/// One block per place of an overflowing rank: restores choices below the threshold that fit, and drops the others.
struct RestoreFitting {
  static constexpr const char* kName = "expert_restore_fitting";
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
      std::uint64_t low = 0, from = threshold;  // from `low` on there are too many, from `from` on all fit
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
  /// Number of choices of a place with a key in [first, last). All threads of the block must call it.
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
