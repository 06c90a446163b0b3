#pragma once
// Locations of the caller's buffers in windows of the group, and the local mappings of the members' windows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace accord::exec {

/// A place in a window, as ranks announce it to each other: the number of the window, which is equal on all ranks,
/// and the offset in the announcing rank's memory.
using PlaceWord = std::uint64_t;
inline constexpr int kOffsetBits = 48;
/// Announced if a rank has no such buffer.
inline constexpr PlaceWord kNoPlace = ~PlaceWord{0};
inline constexpr PlaceWord place_word(int window, std::size_t offset) {
  return static_cast<PlaceWord>(window) << kOffsetBits | offset;
}
inline constexpr int window_of(PlaceWord place) { return static_cast<int>(place >> kOffsetBits); }
inline constexpr std::size_t offset_of(PlaceWord place) { return place & ((PlaceWord{1} << kOffsetBits) - 1); }

/// A window that this rank has: the local address of each member's memory.
struct MappedWindow {
  int number = 0;
  std::vector<std::byte*> members;
};

/// Windows by number, ascending.
using MappedWindows = std::vector<MappedWindow>;

/// Null if there is no such window.
inline std::byte* address_of(const MappedWindows& windows, PlaceWord place, int member) {
  const auto by_number = [](const MappedWindow& window, int number) { return window.number < number; };
  const auto found = std::lower_bound(windows.begin(), windows.end(), window_of(place), by_number);
  if (found == windows.end() || found->number != window_of(place)) return nullptr;
  return found->members[static_cast<std::size_t>(member)] + offset_of(place);
}

/// The buffers of one call on this rank.
struct Placement {
  const MappedWindows* windows = nullptr;  ///< null: not all buffers are in windows
  /// The process of each member; if set, places are addresses in its memory.
  const std::vector<int>* processes = nullptr;
  PlaceWord input = kNoPlace;
  PlaceWord output = kNoPlace;
  bool in_place = false;  ///< input and output overlap
};
inline constexpr Placement kNoPlacement = {};

}  // namespace accord::exec
