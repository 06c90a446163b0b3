#pragma once
// How the lanes of a warp copy a row, with its scales and its weight.

#include "device/kernel.hpp"
#include "expert/rows.hpp"

namespace accord::expert {

/// Copies `bytes` with the lanes of a warp, or clears them if `from` is null. Several reads are in flight at a time.
template <typename Unit, typename Block>
ACCORD_ON_DEVICE void copy_units(Block& block, std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kAhead = 4;
  auto* const target = reinterpret_cast<Unit*>(to);
  const auto* const source = reinterpret_cast<const Unit*>(from);
  const auto lanes = static_cast<std::size_t>(block.lanes());
  const std::size_t count = bytes / sizeof(Unit);
  auto i = static_cast<std::size_t>(block.lane());
  for (; source != nullptr && i + (kAhead - 1) * lanes < count; i += kAhead * lanes) {
    Unit ahead[kAhead];
    for (std::size_t a = 0; a < kAhead; ++a) ahead[a] = source[i + a * lanes];
    for (std::size_t a = 0; a < kAhead; ++a) target[i + a * lanes] = ahead[a];
  }
  for (; i < count; i += lanes) target[i] = source != nullptr ? source[i] : Unit{};
}

template <typename Block>
ACCORD_ON_DEVICE void copy_bytes(Block& block, std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t low = reinterpret_cast<std::size_t>(to) | reinterpret_cast<std::size_t>(from) | bytes;
  if (low % sizeof(device::Words) == 0)
    copy_units<device::Words>(block, to, from, bytes);
  else if (low % sizeof(std::uint32_t) == 0)
    copy_units<std::uint32_t>(block, to, from, bytes);
  else
    copy_units<std::byte>(block, to, from, bytes);
}

/// Copies one row; what `from` lacks is cleared, what `to` lacks is left out.
template <typename Block>
ACCORD_ON_DEVICE void copy_row(Block& block, const Rows& to, const ConstRows& from, const RowBytes& bytes) {
  copy_bytes(block, to.rows, from.rows, bytes.row);
  if (to.scales != nullptr) copy_bytes(block, to.scales, from.scales, bytes.scales);
  if (to.weights != nullptr) copy_bytes(block, to.weights, from.weights, bytes.weight);
}

/// Copies the row of a slot to where it travels: a slot without room is cleared, and missing scales count as 1.
/// `slots`: the rows of all slots.
template <typename Block>
ACCORD_ON_DEVICE void copy_slot(Block& block, const Rows& to, const ConstRows& slots, std::size_t slot,
                                std::int64_t room, const RowBytes& bytes) {
  const bool has_room = slot < static_cast<std::size_t>(room);
  copy_row(block, to, has_room ? row_at(slots, slot, slot, bytes) : ConstRows{}, bytes);
  if (to.scales == nullptr || slots.scales != nullptr) return;
  block.sync_warp();  // copy_row() has cleared the scales
  const auto lanes = static_cast<std::size_t>(block.lanes());
  for (auto i = static_cast<std::size_t>(block.lane()); i < bytes.scales / sizeof(float); i += lanes)
    reinterpret_cast<float*>(to.scales)[i] = 1.0F;
}

/// Copies a float32 or, if `wide`, float64 weight, or clears it if `from` is null.
ACCORD_ON_DEVICE inline void copy_weight(std::byte* to, const std::byte* from, bool wide) {
  if (wide)
    *reinterpret_cast<std::uint64_t*>(to) = from != nullptr ? *reinterpret_cast<const std::uint64_t*>(from) : 0;
  else
    *reinterpret_cast<std::uint32_t*>(to) = from != nullptr ? *reinterpret_cast<const std::uint32_t*>(from) : 0;
}

/// Items that a warp handles: for (i = first_of_warp(block); i < items; i += warps_of(block)).
template <typename Block>
ACCORD_ON_DEVICE std::size_t first_of_warp(Block& block) {
  return block.first() / static_cast<std::size_t>(block.lanes());
}
template <typename Block>
ACCORD_ON_DEVICE std::size_t warps_of(Block& block) {
  return block.stride() / static_cast<std::size_t>(block.lanes());
}

}  // namespace accord::expert
