#pragma once
// The layout of a rank's window: a pure function of the group's size, equal on all ranks.
//
//   control   one block: the alarm that peers raise when something failed; the owner's calls in streams of its GPU;
//             from each peer a notice that describes the failure; a board for each peer, on which it writes when the
//             survivors meet again (comm/membership/shrink.hpp); and a mailbox for each peer, in which members that
//             form a group among themselves write to each other (comm/membership/announcements.hpp)
//   mirrors   for each peer the head of its region of each domain that it shares with this rank; used only if its
//             window is not mapped here: it then writes there what others would read in place
//   domains   one region for each domain that the rank is in: domain 0 is the whole group; then for each peer the
//             pair (this rank -> peer) and the pair (peer -> this rank), so that messages involve no other rank
//
// A domain's region holds the following parts, each on its own cache lines:
//   completed the last round that the owner has completed; after it, while the owner waits long, the member it waits
//             for, and when it last checked
//   records   for each round in flight the owner's request, so that a mismatch can be reported, and its factor if the
//             op has one
//   cells     small packets [chunk][round], for kCellDepth rounds: a word of data, then the round word; those of four
//             rounds share a cache line, so that a rank that is ahead of its reader writes, and the reader fetches,
//             one line for all of them
//   lines     for each of kLineDepth rounds: signal flags [from][id], packets [chunk]
//   slots     for each of plan::kRoundDepth rounds: scratch
//
// Windows are sparse: a page uses memory once it is touched, so regions of pairs that never communicate cost none.

#include <cstddef>
#include <cstdint>

#include "accord/status.hpp"
#include "plan/step_rules.hpp"

namespace accord::exec {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kPage = 4096;
/// A packet line: this much data, then the round word.
inline constexpr std::size_t kPacketData = 56;
/// A cell: this much data, then the round word.
inline constexpr std::size_t kCellData = 8;
/// Data bytes per packet chunk.
inline constexpr std::size_t kPacketCapacity = 147 * kPacketData;  // 8232 bytes

/// Rounds whose flags and packets may be in flight at once. This applies to plans without scratch, which are small,
/// so that a root need not wait for each of its readers in turn. Plans are verified with plan::kRoundDepth rounds; a
/// gate that is this many rounds behind orders the rounds that share a line in the same way.
inline constexpr std::uint32_t kLineDepth = 32;
static_assert(kLineDepth % plan::kRoundDepth == 0);
/// The same for rounds whose packets are all in cells, and therefore for records.
inline constexpr std::uint32_t kCellDepth = 64;
static_assert(kCellDepth % kLineDepth == 0);

/// Offsets within one domain's region.
struct DomainLayout {
  int members = 0;
  int signals = 0;  ///< ids for each pair of members
  std::size_t slot_bytes = 0;

  static constexpr std::size_t completed() { return 0; }
  static constexpr std::size_t waiting() { return 8; }
  static constexpr std::size_t checked() { return 16; }
  static constexpr std::size_t record(std::uint64_t round) { return kLine * (1 + round % kCellDepth); }
  static constexpr std::size_t cells(std::uint64_t round) { return kHead + (round % kCellDepth) * 2 * kCellData; }
  std::size_t lines(std::uint64_t round) const;
  std::size_t slot(std::uint64_t round) const;
  std::size_t bytes() const { return slot(plan::kRoundDepth - 1) + slot_room(); }
  /// The part that peers read in place: the completed word and the records.
  static constexpr std::size_t kHead = (kLine * (1 + kCellDepth) + kPage - 1) / kPage * kPage;

  /// A ring over packets needs one chunk less than there are members for each pair; no plan has needed more than 16
  /// per pair.
  int packet_chunks() const { return plan::packet_chunks_of(members); }

  // Within the cells of a round:
  static constexpr std::size_t cell(int chunk) { return static_cast<std::size_t>(chunk) * kCellDepth * 2 * kCellData; }
  // Within the lines of a round:
  std::size_t flag(int from, int id) const { return kLine * (static_cast<std::size_t>(from) * signals + id); }
  std::size_t packets(int chunk) const;

 private:
  std::size_t lines_bytes() const;
  std::size_t slot_room() const;
};

class WindowLayout {
 public:
  /// `slot_bytes`: scratch of one round, a multiple of the page size.
  WindowLayout(int size, std::size_t slot_bytes);

  static constexpr std::size_t alarm() { return 0; }
  /// The owner's device calls (comm/device/ledger.hpp).
  static constexpr std::size_t device_calls() { return kLine; }
  static constexpr std::size_t notice(Rank from) { return kPage + static_cast<std::size_t>(from) * kNoticeBytes; }
  static constexpr std::size_t kNoticeBytes = 512;
  std::size_t board(Rank from) const;
  static constexpr std::size_t kBoardBytes = 6 * kPage;
  std::size_t mailbox(Rank from) const;
  static constexpr std::size_t kMailboxBytes = 2 * kPage;

  /// The mirrors of `peer`: of the group's domain, of the messages that the window's owner sends to it, and of those
  /// it receives.
  std::size_t group_mirror(Rank peer) const { return mirrors() + static_cast<std::size_t>(peer) * 3 * kMirror; }
  std::size_t mirror_to(Rank peer) const { return group_mirror(peer) + kMirror; }
  std::size_t mirror_from(Rank peer) const { return group_mirror(peer) + 2 * kMirror; }

  const DomainLayout& group() const { return group_; }
  const DomainLayout& pair() const { return pair_; }
  std::size_t group_region() const;
  std::size_t region_to(Rank peer) const;    ///< messages that the window's owner sends to `peer`
  std::size_t region_from(Rank peer) const;  ///< messages that it receives
  std::size_t bytes() const;

 private:
  static constexpr std::size_t kMirror = DomainLayout::kHead;
  std::size_t mirrors() const { return mailbox(size_); }
  int size_;
  DomainLayout group_;
  DomainLayout pair_;
};

}  // namespace accord::exec
