#pragma once
// Locations of the caller's buffers in windows of the group, and the local mappings of the members' windows.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "exec/place_word.hpp"

namespace accord::exec {

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
