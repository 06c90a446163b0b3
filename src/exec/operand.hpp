#pragma once
// Locations of the operands of lowered steps.

#include <cstdint>
#include <limits>

#include "accord/buffer.hpp"

namespace accord::exec {

/// An address relative to a base. Bases are the caller's input and output, then each member's lines and slot of the
/// round, then, for plans with buffers in windows, each member's input and output; after those the slots of
/// multicast.
struct Operand {
  static constexpr std::uint16_t kInput = 0;
  static constexpr std::uint16_t kOutput = 1;
  static constexpr std::uint16_t lines_of(Rank member) { return static_cast<std::uint16_t>(2 + 2 * member); }
  static constexpr std::uint16_t slot_of(Rank member) { return static_cast<std::uint16_t>(3 + 2 * member); }
  static constexpr std::uint16_t input_of(Rank member, int members) {
    return static_cast<std::uint16_t>(lines_of(members) + 2 * member);
  }
  static constexpr std::uint16_t output_of(Rank member, int members) {
    return static_cast<std::uint16_t>(input_of(member, members) + 1);
  }
  /// The slot of the round in multicast memory: this rank's, or that of every rank at once.
  static constexpr std::uint16_t multicast_of(bool of_every_rank, int members) {
    return static_cast<std::uint16_t>(lines_of(2 * members) + (of_every_rank ? 1 : 0));
  }

  /// The number of bases.
  static constexpr int bases(int members) { return multicast_of(true, members) + 1; }
  /// The most members of which all bases have numbers.
  static constexpr int kMaxMembers = (std::numeric_limits<std::uint16_t>::max() - 3) / 4;

  /// The member of a base of lines_of() or slot_of(), and which of the two it is.
  static constexpr Rank member_of(std::uint16_t base) { return (base - lines_of(0)) / 2; }
  static constexpr bool is_slot(std::uint16_t base) { return base % 2 == slot_of(0) % 2; }

  /// The member of a base of input_of() or output_of().
  static constexpr Rank member_of_buffers(std::uint16_t base, int members) { return (base - input_of(0, members)) / 2; }

  std::uint64_t offset = 0;
  std::uint16_t base = 0;
  bool packets = false;
  bool partial = false;      ///< holds accumulators that are not elements
  std::int32_t sender = -1;  ///< rank that puts the packets

  /// The member whose window contains it, and whether it is in the slot there. REQUIRES: is_shared().
  int member() const { return member_of(base); }
  bool in_slot() const { return is_slot(base); }
  /// In a member's window, where peers read, or in a peer's buffer.
  bool is_shared() const { return base > kOutput; }
};

}  // namespace accord::exec
