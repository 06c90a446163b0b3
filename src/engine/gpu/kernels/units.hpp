#pragma once
// The pieces in which kernels read and write rows: Words where rows consist of them, otherwise single elements. A
// kernel is written once for both.

#include <type_traits>

#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

/// Units of 16 bytes.
template <DType kDType>
struct WordUnit {
  using Stored = Words;
  static constexpr int kCount = kElementsOfWords<kDType>;

  ACCORD_ON_DEVICE static void load(Stored from, float (&x)[kCount]) { elements_of<kDType>(from, x); }
  /// Rounds to kDType. The bits of a NaN are unspecified.
  ACCORD_ON_DEVICE static Stored stored(const float (&x)[kCount]) {
    Stored words;
    ACCORD_UNROLLED
    for (int i = 0; i < 4; ++i) {
      if constexpr (kDType == DType::kFloat32) {
        words.of[i] = device::bits_of(x[i]);
      } else {
        words.of[i] = word_of_pair<kDType>(x[2 * i], x[2 * i + 1]);
      }
    }
    return words;
  }
};

/// Units of one element.
template <DType kDType>
struct ElementUnit {
  using Stored = std::conditional_t<kDType == DType::kFloat32, float, std::uint16_t>;
  static constexpr int kCount = 1;

  ACCORD_ON_DEVICE static void load(Stored from, float (&x)[kCount]) { x[0] = device::load_float(&from, kDType, 0); }
  ACCORD_ON_DEVICE static Stored stored(const float (&x)[kCount]) {
    Stored element{};
    device::store_float(&element, kDType, 0, x[0]);
    return element;
  }
};

/// Rounds x to kDType, as if it had been stored.
template <typename Unit>
ACCORD_ON_DEVICE inline void round_to_unit(float (&x)[Unit::kCount]) {
  Unit::load(Unit::stored(x), x);
}

/// Returns the unit of `data` that begins at element `first`, which must be a multiple of Unit::kCount.
template <typename Unit>
ACCORD_ON_DEVICE inline const typename Unit::Stored* units_at(const void* data, std::int64_t first) {
  return static_cast<const typename Unit::Stored*>(data) + first / Unit::kCount;
}
template <typename Unit>
ACCORD_ON_DEVICE inline typename Unit::Stored* units_at(void* data, std::int64_t first) {
  return static_cast<typename Unit::Stored*>(data) + first / Unit::kCount;
}

/// Collects what must be multiples of 16 bytes for rows of kDType to consist of Words.
template <DType kDType>
class WordCheck {
 public:
  ACCORD_ON_DEVICE WordCheck& address(const void* data) {
    bits_ |= reinterpret_cast<std::uintptr_t>(data);
    return *this;
  }
  ACCORD_ON_DEVICE WordCheck& elements(std::int64_t count) {
    bits_ |= static_cast<std::uintptr_t>(count * static_cast<std::int64_t>(size_of(kDType)));
    return *this;
  }
  ACCORD_ON_DEVICE bool holds() const { return bits_ % sizeof(Words) == 0; }

 private:
  std::uintptr_t bits_ = 0;
};

/// The threads that compute a row together. index() and size(): a thread's position and their number.
template <typename Block>
class BlockTeam {
 public:
  ACCORD_ON_DEVICE explicit BlockTeam(Block& block) : block_(block) {}
  ACCORD_ON_DEVICE int index() const { return block_.thread(); }
  ACCORD_ON_DEVICE int size() const { return block_.threads(); }
  ACCORD_ON_DEVICE float sum(float x) const { return block_.block_sum(x); }

 private:
  Block& block_;
};
template <typename Block>
class WarpTeam {
 public:
  ACCORD_ON_DEVICE explicit WarpTeam(Block& block) : block_(block) {}
  ACCORD_ON_DEVICE int index() const { return block_.lane(); }
  ACCORD_ON_DEVICE int size() const { return block_.lanes(); }
  ACCORD_ON_DEVICE float sum(float x) const { return block_.warp_sum(x); }

 private:
  Block& block_;
};

}  // namespace accord::engine
