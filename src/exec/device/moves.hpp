#pragma once
// How the threads of a block move bytes together: within the memory that they reach, and through a switch to and from
// the memory of every rank.

#include "exec/device/several.hpp"

namespace accord::exec {

/// Stores up to 8 bytes of a packet.
ACCORD_ON_DEVICE inline void store_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes == 8 && is_aligned(to, 8)) {
    *reinterpret_cast<std::uint64_t*>(to) = *reinterpret_cast<const std::uint64_t*>(from);
    return;
  }
  for (std::size_t b = 0; b < bytes; ++b) to[b] = from[b];
}

template <typename Unit, typename Block>
ACCORD_ON_DEVICE void move_units(Block& block, const std::byte* from, std::byte* to, std::byte* mirror,
                                 std::size_t bytes) {
  const std::size_t units = bytes / sizeof(Unit);
  const auto stride = static_cast<std::size_t>(block.threads());
  for (auto i = static_cast<std::size_t>(block.thread()); i < units; i += stride) {
    const Unit unit = reinterpret_cast<const Unit*>(from)[i];
    reinterpret_cast<Unit*>(to)[i] = unit;
    if (mirror != nullptr) reinterpret_cast<Unit*>(mirror)[i] = unit;
  }
  for (std::size_t i = units * sizeof(Unit) + static_cast<std::size_t>(block.thread()); i < bytes; i += stride) {
    to[i] = from[i];
    if (mirror != nullptr) mirror[i] = from[i];
  }
}

/// Copies to one or two places at any alignment; `mirror` may be null.
template <typename Block>
ACCORD_ON_DEVICE void move_bytes(Block& block, const std::byte* from, std::byte* to, std::byte* mirror,
                                 std::size_t bytes) {
  const auto all_at = [&](std::size_t unit) {
    return is_aligned(from, unit) && is_aligned(to, unit) && is_aligned(mirror, unit);
  };
  if (all_at(sizeof(device::Words))) return move_units<device::Words>(block, from, to, mirror, bytes);
  if (all_at(sizeof(std::uint32_t))) return move_units<std::uint32_t>(block, from, to, mirror, bytes);
  move_units<std::byte>(block, from, to, mirror, bytes);
}

/// An address in a rank's own memory, or one that represents the same place on every rank.
struct SwitchPlace {
  std::byte* at = nullptr;  ///< null: none
  bool of_every_rank = false;
};

/// Copies from own memory, or the sum over every rank's, to one or two places. A place of every rank is aligned to 16
/// bytes, and whole words are read and written there, even beyond the last byte.
template <device::SwitchSum kSum, typename Block>
ACCORD_ON_DEVICE void move_by_switch(Block& block, const SwitchPlace& from, const SwitchPlace& to,
                                     const SwitchPlace& mirror, std::size_t bytes) {
  constexpr std::size_t kWord = sizeof(device::Words);
  constexpr int kWordsInFlight = 4;  // words in flight per thread
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
    if (place.at == nullptr) return;
    if (place.of_every_rank) return block.store_multicast(place.at + i * kWord, word);
    const std::size_t many = bytes - i * kWord < kWord ? bytes - i * kWord : kWord;
    if (many == kWord && is_aligned(place.at, kWord)) {
      reinterpret_cast<device::Words*>(place.at)[i] = word;
    } else {
      std::memcpy(place.at + i * kWord, &word, many);
    }
  };
  for (auto first = static_cast<std::size_t>(block.thread()); first < words; first += threads * kWordsInFlight) {
    device::Words word[kWordsInFlight];
    for (int t = 0; t < kWordsInFlight; ++t)
      if (const std::size_t i = first + static_cast<std::size_t>(t) * threads; i < words) word[t] = read(i);
    for (int t = 0; t < kWordsInFlight; ++t) {
      const std::size_t i = first + static_cast<std::size_t>(t) * threads;
      if (i >= words) break;
      write(to, i, word[t]);
      write(mirror, i, word[t]);
    }
  }
}

}  // namespace accord::exec
