#pragma once
// Reductions of any operands: elements in memory at any alignment, packets, and sums that are wider than elements.

#include <bit>

#include "exec/device/plan_round.hpp"
#include "exec/device/sums.hpp"

namespace accord::exec {

/// A thread handles the elements of one packet at a time, or one wide element, which occupies two. It reads those of 8
/// sources before it waits for the first.
template <typename Element, typename Round>
class MixedSums {
 public:
  ACCORD_ON_DEVICE MixedSums(Round& round, const DeviceStep& step) : round_(round), step_(step) {}

  /// Reduces the elements from `done` on.
  ACCORD_ON_DEVICE void run(std::size_t done) {
    const std::size_t count = round_.elements(step_);
    const auto stride = static_cast<std::size_t>(round_.block().threads()) * kCount;
    for (std::size_t first = done + static_cast<std::size_t>(round_.block().thread()) * kCount; first < count;
         first += stride) {
      const int many = count - first < kCount ? static_cast<int>(count - first) : kCount;
      Sums sums = sum_of_all(first, many);
      if (round_.program().op == ReduceOp::kAvg) divide<Element>(sums, step_.sources);
      if (round_.ends()) return;
      round_.each_destination(
          step_, [&](std::byte* to, const DeviceOperand& operand) { store(sums, to, operand, first, many); });
    }
  }

 private:
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;
  static constexpr int kCount = sizeof(Stored) < 8 ? 8 / static_cast<int>(sizeof(Stored)) : 1;
  static constexpr int kPackets = sizeof(Stored) * kCount / 8;
  static constexpr int kSlots = 8;
  using Sums = SumsOf<Element, kCount>;
  using Elements = Several<Stored, kCount>;
  using Stores = Several<std::uint64_t, kPackets>;  ///< elements as they are in memory
  static_assert(sizeof(Elements) == sizeof(Stores));

  /// Adds the groups of 8 sources as in a binary counter, and folds the rest from the smaller ones
  /// (kernels/reduce/loops_simd.hpp).
  ACCORD_ON_DEVICE Sums sum_of_all(std::size_t first, int many) {
    if (step_.sources <= kSlots) return sum_of_group(0, first, many);
    Sums stack[14];
    int height = 0;
    for (unsigned group = 0; group * kSlots < static_cast<unsigned>(step_.sources); ++group) {
      Sums sums = sum_of_group(static_cast<int>(group) * kSlots, first, many);
      for (unsigned carry = group; (carry & 1U) != 0; carry >>= 1) sums = combined(stack[--height], sums);
      stack[height++] = sums;
    }
    Sums sums = stack[--height];
    while (height > 0) sums = combined(stack[--height], sums);
    return sums;
  }

  /// The sums of up to 8 sources from `begin` on, for `many` elements from `first` on; those behind are meaningless.
  ACCORD_ON_DEVICE Sums sum_of_group(int begin, std::size_t first, int many) {
    const int sources = step_.sources - begin < kSlots ? step_.sources - begin : kSlots;
    Stores stored[kSlots] = {};
    round_.await([&] {
      bool arrived = true;
      for (int s = 0; s < kSlots; ++s)
        if (s < sources) arrived = fetch(source(begin + s), first, many, stored[s]) && arrived;
      return arrived;
    });
    return tree_of<0, kSlots>(
        sources,
        [&](int s) {
          const DeviceOperand& operand = source(begin + s);
          if (operand.partial) return wide_sums(operand, first, many);
          const auto elements = std::bit_cast<Elements>(stored[s]);
          Sums sums;
          for (int i = 0; i < kCount; ++i) sums.x[i] = Element::widen(elements.x[i]);
          return sums;
        },
        [&](const Sums& a, const Sums& b) { return combined(a, b); });
  }

  /// Fetches elements as they are in memory, unless the source holds sums. Returns whether they have arrived.
  ACCORD_ON_DEVICE bool fetch(const DeviceOperand& operand, std::size_t first, int many, Stores& to) const {
    if (operand.partial) return true;
    std::byte* const at = round_.address(operand);
    bool arrived = true;
    for (int i = 0; i < kPackets; ++i) {
      if (operand.packets) {
        const device::Packet packet = round_.block().load(packets_at(at, first) + i);
        arrived = arrived && round_.has_arrived(packet);
        to.x[i] = Round::word_in(packet);
      } else {
        to.x[i] = load_word(at + first * sizeof(Stored) + 8 * i, bytes_of(many, i));
      }
    }
    return arrived;
  }

  ACCORD_ON_DEVICE Sums wide_sums(const DeviceOperand& operand, std::size_t first, int many) const {
    const auto* const wide = reinterpret_cast<const Sum*>(round_.address(operand)) + first;
    Sums sums = {};
    for (int i = 0; i < kCount; ++i)
      if (i < many) sums.x[i] = wide[i];
    return sums;
  }

  ACCORD_ON_DEVICE void store(const Sums& sums, std::byte* at, const DeviceOperand& operand, std::size_t first,
                              int many) const {
    if (operand.partial) {
      auto* const wide = reinterpret_cast<Sum*>(at) + first;
      for (int i = 0; i < kCount; ++i)
        if (i < many) wide[i] = sums.x[i];
      return;
    }
    Elements elements;
    for (int i = 0; i < kCount; ++i) elements.x[i] = Element::narrow(sums.x[i]);
    const auto stored = std::bit_cast<Stores>(elements);
    for (int i = 0; i < kPackets; ++i) {
      if (operand.packets)
        round_.block().store(packets_at(at, first) + i, round_.packet_of(stored.x[i]));
      else
        store_word(stored.x[i], at + first * sizeof(Stored) + 8 * i, bytes_of(many, i));
    }
  }

  /// Bytes of word i of `many` elements: 8, or fewer in the last one.
  ACCORD_ON_DEVICE static std::size_t bytes_of(int many, int i) {
    const std::size_t bytes = static_cast<std::size_t>(many) * sizeof(Stored) - 8 * static_cast<std::size_t>(i);
    return bytes < 8 ? bytes : 8;
  }
  /// The packet at `packets` with the elements from `first` on.
  ACCORD_ON_DEVICE static device::Packet* packets_at(std::byte* packets, std::size_t first) {
    return reinterpret_cast<device::Packet*>(packets) + first * sizeof(Stored) / 8;
  }
  ACCORD_ON_DEVICE Sums combined(const Sums& a, const Sums& b) const {
    return combine<Element>(round_.program().op, a, b);
  }
  ACCORD_ON_DEVICE const DeviceOperand& source(int i) const { return round_.program().source(step_, i); }

  Round& round_;
  const DeviceStep& step_;
};

}  // namespace accord::exec
