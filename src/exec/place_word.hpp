#pragma once
// The place of a caller's buffer in a window, as ranks announce it to each other.

#include <cstddef>
#include <cstdint>

namespace accord::exec {

/// The number of the window, which is equal on all ranks, and the offset in the announcing rank's memory.
using PlaceWord = std::uint64_t;
inline constexpr int kOffsetBits = 48;
/// Announced if a rank has no such buffer.
inline constexpr PlaceWord kNoPlace = ~PlaceWord{0};
inline constexpr PlaceWord place_word(int window, std::size_t offset) {
  return static_cast<PlaceWord>(window) << kOffsetBits | offset;
}
inline constexpr int window_of(PlaceWord place) { return static_cast<int>(place >> kOffsetBits); }
inline constexpr std::size_t offset_of(PlaceWord place) { return place & ((PlaceWord{1} << kOffsetBits) - 1); }

}  // namespace accord::exec
