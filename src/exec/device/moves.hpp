#pragma once
// How the threads of a block move bytes together: within the memory that they reach, and through a switch to and from
// the memory of every rank. Each thread loads several words before it stores the first one: memory of a peer is a
// microsecond away, and a store might change what a later load reads, so the compiler moves no load above a store.

#include "exec/device/several.hpp"

namespace accord::exec {

/// Copies whole units, and the bytes behind them. `each_destination(visit)` calls visit(address) for each place to
/// write.
template <typename Unit, int kInFlight, typename Block, typename EachDestination>
ACCORD_ON_DEVICE void move_units(const Block& block, const std::byte* from, std::size_t bytes,
                                 EachDestination each_destination) {
  const std::size_t units = bytes / sizeof(Unit);
  const auto threads = static_cast<std::size_t>(block.threads());
  for (auto first = static_cast<std::size_t>(block.thread()); first < units; first += threads * kInFlight) {
    Unit unit[kInFlight];
    for (int t = 0; t < kInFlight; ++t)
      if (const std::size_t i = first + static_cast<std::size_t>(t) * threads; i < units)
        unit[t] = reinterpret_cast<const Unit*>(from)[i];
    each_destination([&](std::byte* to) {
      for (int t = 0; t < kInFlight; ++t)
        if (const std::size_t i = first + static_cast<std::size_t>(t) * threads; i < units)
          reinterpret_cast<Unit*>(to)[i] = unit[t];
    });
  }
  for (std::size_t i = units * sizeof(Unit) + static_cast<std::size_t>(block.thread()); i < bytes; i += threads)
    each_destination([&](std::byte* to) { to[i] = from[i]; });
}

/// Copies to one or more places, at any alignment.
template <typename Block, typename EachDestination>
ACCORD_ON_DEVICE void move_bytes(const Block& block, const std::byte* from, std::size_t bytes,
                                 EachDestination each_destination) {
  auto addresses = reinterpret_cast<std::uintptr_t>(from);
  each_destination([&](std::byte* to) { addresses |= reinterpret_cast<std::uintptr_t>(to); });
  if (addresses % sizeof(device::Words) == 0) return move_units<device::Words, 4>(block, from, bytes, each_destination);
  if (addresses % sizeof(std::uint32_t) == 0) return move_units<std::uint32_t, 4>(block, from, bytes, each_destination);
  move_units<std::byte, 1>(block, from, bytes, each_destination);
}

/// An address in a rank's own memory, or one that represents the same place on every rank.
struct SwitchPlace {
  std::byte* at = nullptr;
  bool of_every_rank = false;
};

/// Copies from own memory, or the sum over every rank's, to one or more places: `each_destination(visit)` calls
/// visit(SwitchPlace) for each. A place of every rank is aligned to 16 bytes, and whole words are read and written
/// there, even beyond the last byte.
template <device::SwitchSum kSum, typename Block, typename EachDestination>
ACCORD_ON_DEVICE void move_by_switch(Block& block, const SwitchPlace& from, std::size_t bytes,
                                     EachDestination each_destination) {
  constexpr std::size_t kWord = sizeof(device::Words);
  constexpr int kInFlight = 4;
  const std::size_t words = (bytes + kWord - 1) / kWord;
  const auto threads = static_cast<std::size_t>(block.threads());
  const auto read = [&](std::size_t i) {
    device::Words word = {};
    if constexpr (kSum != device::SwitchSum::kNone) {
      if (from.of_every_rank) return block.template sum_multicast<kSum>(from.at + i * kWord);
    }
    const std::size_t many = bytes - i * kWord < kWord ? bytes - i * kWord : kWord;
    if (many == kWord && is_aligned(from.at, kWord)) return reinterpret_cast<const device::Words*>(from.at)[i];
    std::memcpy(&word, from.at + i * kWord, many);
    return word;
  };
  const auto write = [&](const SwitchPlace& place, std::size_t i, const device::Words& word) {
    if (place.of_every_rank) return block.store_multicast(place.at + i * kWord, word);
    const std::size_t many = bytes - i * kWord < kWord ? bytes - i * kWord : kWord;
    if (many == kWord && is_aligned(place.at, kWord)) {
      reinterpret_cast<device::Words*>(place.at)[i] = word;
    } else {
      std::memcpy(place.at + i * kWord, &word, many);
    }
  };
  for (auto first = static_cast<std::size_t>(block.thread()); first < words; first += threads * kInFlight) {
    device::Words word[kInFlight];
    for (int t = 0; t < kInFlight; ++t)
      if (const std::size_t i = first + static_cast<std::size_t>(t) * threads; i < words) word[t] = read(i);
    each_destination([&](const SwitchPlace& place) {
      for (int t = 0; t < kInFlight; ++t)
        if (const std::size_t i = first + static_cast<std::size_t>(t) * threads; i < words) write(place, i, word[t]);
    });
  }
}

}  // namespace accord::exec
