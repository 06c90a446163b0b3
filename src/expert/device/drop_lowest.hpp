#pragma once
// Drops choices by weight without sorting. Each choice has a unique key, which is higher for a higher weight and, for
// equal weights, for an earlier choice. A rank keeps the choices whose key is at least a threshold: the lowest
// threshold for which they fit, padding included. Then each place restores the choices with the highest keys below
// the threshold that fit into its padding.
//
// Both limits are found digit by digit, from the highest. Each pass over the choices counts those of each place by
// the next digit of their keys, as in a radix sort; the counts show in which digit the limit is. All blocks count, and
// one block for each rank, or one warp for each place, looks for the digit. With 18 bits for the choice and digits of
// 8 bits, each limit takes 7 passes.

#include <bit>

#include "expert/device/call_block.hpp"
#include "expert/device/lane_sums.hpp"
#include "expert/device/map.hpp"

namespace accord::expert {

template <typename Block>
class DropLowest {
 public:
  ACCORD_ON_DEVICE DropLowest(Block& block, CallBlock<Block>& call, const Map& map)
      : block_(block),
        call_(call),
        map_(map),
        choice_bits_(bits_of(static_cast<std::uint64_t>(map.choices()))),
        digits_(1 << map.bin_bits) {}

  /// All blocks of the kernel call it. Afterwards the places of dropped choices are -1. Returns false if a wait was
  /// ended.
  ACCORD_ON_DEVICE bool run() {
    for (std::size_t p = block_.first(); p < static_cast<std::size_t>(map_.places); p += block_.stride())
      map_.low[p] = map_.above[p] = 0;
    clear_bins(0, map_.places, block_.first(), block_.stride());
    if (!call_.sync_blocks()) return false;
    const int last_shift = (32 + choice_bits_ - 1) / map_.bin_bits * map_.bin_bits;
    for (int shift = last_shift; shift >= 0; shift -= map_.bin_bits) {
      if (!count(shift, [&](std::int32_t p, std::uint64_t) { return map_.overflows(map_.holder[p]); })) return false;
      for (int r = block_.block(); r < map_.ranks; r += block_.blocks())
        if (map_.overflows(r)) narrow_rank(r, shift);
      if (!call_.sync_blocks()) return false;
    }
    for (int shift = last_shift; shift >= 0; shift -= map_.bin_bits) {
      if (!count(shift, [&](std::int32_t p, std::uint64_t key) { return searches(p) && key < threshold(p); }))
        return false;
      const auto lanes = static_cast<std::size_t>(block_.lanes());
      for (std::size_t p = block_.first() / lanes; p < static_cast<std::size_t>(map_.places);
           p += block_.stride() / lanes)
        if (searches(static_cast<std::int32_t>(p))) narrow_place(static_cast<std::int32_t>(p), shift);
      if (!call_.sync_blocks()) return false;
    }
    drop();
    return call_.sync_blocks();
  }

 private:
  ACCORD_ON_DEVICE static int bits_of(std::uint64_t x) {
    int bits = 0;
    for (; x != 0; x >>= 1) ++bits;
    return bits;
  }

  /// A NaN is the lowest weight, like -infinity; -0 equals 0.
  ACCORD_ON_DEVICE std::uint64_t key_of(std::int64_t choice) const {
    const float weight = map_.weight[choice];
    auto bits = std::bit_cast<std::uint32_t>(weight);
    if (weight != weight) bits = 0xFF800000U;
    if (weight == 0.0F) bits = 0;
    const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
    return (std::uint64_t{ordered} << choice_bits_) | static_cast<std::uint64_t>(map_.choices() - 1 - choice);
  }

  ACCORD_ON_DEVICE std::uint64_t* bins(std::int32_t place) const {
    return map_.bins + (static_cast<std::int64_t>(place) << map_.bin_bits);
  }
  /// Clears every `step`-th bin of the places from `first` on.
  ACCORD_ON_DEVICE void clear_bins(std::int32_t first, std::int32_t last, std::size_t from, std::size_t step) const {
    const std::size_t end = static_cast<std::size_t>(last - first) << map_.bin_bits;
    for (std::size_t i = from; i < end; i += step) bins(first)[i] = 0;
  }

  /// All blocks: counts the choices of each place by their digit at `shift`, if their higher digits are those of the
  /// keys that are examined and `takes` agrees.
  template <typename Takes>
  ACCORD_ON_DEVICE bool count(int shift, Takes takes) {
    for (std::size_t i = block_.first(); i < static_cast<std::size_t>(map_.choices()); i += block_.stride()) {
      const auto c = static_cast<std::int64_t>(i);
      const std::int32_t p = map_.place[c];
      if (p < 0) continue;
      const std::uint64_t key = key_of(c);
      if (key < map_.low[p] || !takes(p, key)) continue;
      const std::uint64_t digit = (key - map_.low[p]) >> shift;
      if (digit < static_cast<std::uint64_t>(digits_)) block_.add(bins(p) + digit, 1);
    }
    return call_.sync_blocks();
  }

  /// One warp: replaces the count of each digit of a place by that of this digit and all higher ones.
  ACCORD_ON_DEVICE void sum_from_above(std::int32_t place) const {
    std::uint64_t before = 0;
    for (int first = 0; first < digits_; first += block_.lanes()) {
      const int digit = digits_ - 1 - first - block_.lane();
      const std::uint64_t sum = sum_of_lanes_up_to(block_, digit >= 0 ? bins(place)[digit] : 0);
      if (digit >= 0) bins(place)[digit] = before + sum;
      before += block_.from_lane(sum, block_.lanes() - 1);
    }
    block_.sync_warp();
  }

  /// Continues with the keys of a place that have `digit` at `shift`, of which all higher ones are counted.
  ACCORD_ON_DEVICE void enter(std::int32_t place, int digit, int shift) const {
    map_.above[place] += digit + 1 < digits_ ? bins(place)[digit + 1] : 0;
    map_.low[place] += static_cast<std::uint64_t>(digit) << shift;
  }

  /// One block: finds the highest digit from which on too many rows of a rank would be kept. In the last pass, the
  /// threshold is the next key.
  ACCORD_ON_DEVICE void narrow_rank(int r, int shift) const {
    const std::int32_t first = map_.first_place[r], last = map_.first_place[r + 1];
    const int warps = block_.threads() / block_.lanes();
    for (std::int32_t p = first + block_.thread() / block_.lanes(); p < last; p += warps) sum_from_above(p);
    block_.sync();
    std::int64_t too_low = 0;  // digits above 0; digit 0 is too low in any case
    for (int digit = 1 + block_.thread(); digit < digits_; digit += block_.threads()) {
      std::int64_t rows = 0;
      for (std::int32_t p = first; p < last; ++p)
        rows += map_.padded(static_cast<std::int64_t>(map_.above[p] + bins(p)[digit]));
      too_low += rows > map_.capacity ? 1 : 0;
    }
    const auto digit = static_cast<int>(block_.block_sum(too_low));
    for (std::int32_t p = first + block_.thread(); p < last; p += block_.threads()) {
      enter(p, digit, shift);
      if (shift > 0) continue;
      map_.kept[p] = map_.above[p];
      if (p == first) map_.threshold[r] = map_.low[p] + 1;
      map_.low[p] = map_.above[p] = 0;
    }
    block_.sync();
    clear_bins(first, last, static_cast<std::size_t>(block_.thread()), static_cast<std::size_t>(block_.threads()));
  }

  ACCORD_ON_DEVICE std::uint64_t threshold(std::int32_t place) const { return map_.threshold[map_.holder[place]]; }
  /// Rows that fit into the padding of those that are kept.
  ACCORD_ON_DEVICE std::int64_t room(std::int32_t place) const {
    const auto kept = static_cast<std::int64_t>(map_.kept[place]);
    return map_.padded(kept) - kept;
  }
  /// Whether more rows of a place are below the threshold than fit into its padding.
  ACCORD_ON_DEVICE bool searches(std::int32_t place) const {
    return map_.overflows(map_.holder[place]) &&
           map_.rows[place] - static_cast<std::int64_t>(map_.kept[place]) > room(place);
  }

  /// One warp: the same for a place and its padding.
  ACCORD_ON_DEVICE void narrow_place(std::int32_t place, int shift) const {
    sum_from_above(place);
    std::int64_t too_low = 0;
    for (int digit = 1 + block_.lane(); digit < digits_; digit += block_.lanes())
      too_low += static_cast<std::int64_t>(map_.above[place] + bins(place)[digit]) > room(place) ? 1 : 0;
    const auto digit = static_cast<int>(block_.warp_sum(too_low));
    block_.sync_warp();
    if (block_.lane() == 0) enter(place, digit, shift);
    block_.sync_warp();
    clear_bins(place, place + 1, static_cast<std::size_t>(block_.lane()), static_cast<std::size_t>(block_.lanes()));
  }

  ACCORD_ON_DEVICE void drop() const {
    for (std::size_t i = block_.first(); i < static_cast<std::size_t>(map_.choices()); i += block_.stride()) {
      const auto c = static_cast<std::int64_t>(i);
      const std::int32_t p = map_.place[c];
      if (p < 0 || !searches(p) || key_of(c) > map_.low[p]) continue;
      map_.place[c] = -1;
      block_.add(reinterpret_cast<std::uint64_t*>(&map_.counted[map_.rank_of(c)].dropped), 1);
    }
  }

  Block& block_;
  CallBlock<Block>& call_;
  const Map& map_;
  const int choice_bits_;
  const int digits_;  ///< values of a digit
};

}  // namespace accord::expert
