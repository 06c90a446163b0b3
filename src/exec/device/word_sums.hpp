#pragma once
// Reductions of elements in memory, 16 bytes of each source at a time. A thread has 8 of these words on their way
// before it adds the first two: those of all sources, and for few sources those of several places.

#include <bit>

#include "exec/device/plan_round.hpp"
#include "exec/device/sums.hpp"

namespace accord::exec {

template <typename Element, typename Round>
class WordSums {
 public:
  ACCORD_ON_DEVICE WordSums(const Round& round, const DeviceStep& step) : round_(round), step_(step) {}

  /// Reduces whole words, and returns how many elements these are. The others are left: those behind the last word, or
  /// all if an address is not aligned or there are more than 8 sources.
  ACCORD_ON_DEVICE std::size_t run() const {
    const std::size_t words = round_.elements(step_) / kElements;
    if (words == 0 || step_.sources > kWordsInFlight || !are_aligned()) return 0;
    const ReduceOp op = round_.program().op;
    if (op != ReduceOp::kSum && op != ReduceOp::kAvg) {
      reduce<false, 8>(words);
    } else if (step_.sources <= 2) {
      reduce<true, 2>(words);
    } else if (step_.sources <= 4) {
      reduce<true, 4>(words);
    } else {
      reduce<true, 8>(words);
    }
    return words * kElements;
  }

 private:
  using Stored = typename Element::Stored;
  using Words = device::Words;
  static constexpr int kElements = static_cast<int>(sizeof(Words) / sizeof(Stored));
  /// Elements that are summed at a time, and the parts of a word with so many: their sums need a register or more each.
  static constexpr int kTogether = kElements < 4 ? kElements : 4;
  static constexpr int kParts = kElements / kTogether;
  static constexpr int kWordsInFlight = 8;
  using Elements = Several<Stored, kTogether>;
  using Sums = SumsOf<Element, kTogether>;

  struct Part {
    std::uint32_t of[4 / kParts];
    static constexpr int kCount = 4 / kParts;

    ACCORD_ON_DEVICE static Part first_of(const Words& words) {
      Part part;
      for (int i = 0; i < kCount; ++i) part.of[i] = words.of[i];
      return part;
    }
    /// Removes the first part of a word, and appends this one.
    ACCORD_ON_DEVICE void turn(Words& words) const {
      for (int i = 0; i + kCount < 4; ++i) words.of[i] = words.of[i + kCount];
      for (int i = 0; i < kCount; ++i) words.of[4 - kCount + i] = of[i];
    }
  };

  ACCORD_ON_DEVICE bool are_aligned() const {
    std::uintptr_t addresses = 0;
    for (int i = 0; i < step_.sources + step_.destinations; ++i)
      addresses |= reinterpret_cast<std::uintptr_t>(round_.address(round_.program().source(step_, i)));
    return addresses % sizeof(Words) == 0;
  }

  /// kAdds: for sums and averages. kSlots: at least as many as there are sources.
  template <bool kAdds, int kSlots>
  ACCORD_ON_DEVICE void reduce(std::size_t words) const {
    constexpr int kPlaces = kWordsInFlight / kSlots;
    const Words* from[kSlots];
    for (int s = 0; s < kSlots; ++s)  // slots without a source repeat the first
      from[s] =
          reinterpret_cast<const Words*>(round_.address(round_.program().source(step_, s < step_.sources ? s : 0)));
    const auto threads = static_cast<std::size_t>(round_.block().threads());
    for (auto first = static_cast<std::size_t>(round_.block().thread()); first < words; first += threads * kPlaces) {
      Words loaded[kPlaces][kSlots] = {};
      for (int p = 0; p < kPlaces; ++p) {
        const std::size_t i = first + static_cast<std::size_t>(p) * threads;
        for (int s = 0; s < kSlots; ++s)
          if (i < words && s < step_.sources) loaded[p][s] = from[s][i];
      }
      for (int p = 0; p < kPlaces; ++p) loaded[p][0] = reduced<kAdds>(loaded[p]);
      round_.each_destination(step_, [&](std::byte* to, const DeviceOperand&) {
        for (int p = 0; p < kPlaces; ++p)
          if (const std::size_t i = first + static_cast<std::size_t>(p) * threads; i < words)
            reinterpret_cast<Words*>(to)[i] = loaded[p][0];
      });
    }
  }

  /// Sums a part of each word at a time, and turns the words, so that the code for all parts is the same.
  template <bool kAdds, int kSlots>
  ACCORD_ON_DEVICE Words reduced(Words (&words)[kSlots]) const {
    Words result = {};
    ACCORD_ROLLED
    for (int part = 0; part < kParts; ++part) {
      Sums sums = tree_of<0, kSlots>(
          step_.sources,
          [&](int s) {
            Sums its;
            const auto elements = std::bit_cast<Elements>(Part::first_of(words[s]));
            for (int i = 0; i < kTogether; ++i) its.x[i] = Element::widen(elements.x[i]);
            return its;
          },
          [&](const Sums& a, const Sums& b) {
            if constexpr (kAdds)
              return combine_by<Element, ReduceOp::kSum>(a, b);
            else
              return combine<Element>(round_.program().op, a, b);
          });
      if (kAdds && round_.program().op == ReduceOp::kAvg) divide<Element>(sums, step_.sources);
      Elements elements;
      for (int i = 0; i < kTogether; ++i) elements.x[i] = Element::narrow(sums.x[i]);
      for (int s = 0; s < kSlots; ++s) Part{}.turn(words[s]);
      std::bit_cast<Part>(elements).turn(result);
    }
    return result;
  }

  const Round& round_;
  const DeviceStep& step_;
};

}  // namespace accord::exec
