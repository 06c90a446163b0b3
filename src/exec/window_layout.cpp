// Regions follow each other at page boundaries; blocks and packet areas at cache lines.
#include "exec/window_layout.hpp"

#include <algorithm>

#include "base/rounding.hpp"

namespace accord::exec {

std::size_t DomainLayout::packets(int chunk) const {
  const std::size_t flags = kLine * static_cast<std::size_t>(members) * signals;
  return flags + static_cast<std::size_t>(chunk) * (kPacketCapacity / kPacketData) * kLine;
}

std::size_t DomainLayout::lines(std::uint64_t round) const {
  return kHead + round_up(cell(packet_chunks()), kPage) + (round % kLineDepth) * lines_bytes();
}

std::size_t DomainLayout::slot(std::uint64_t round) const {
  return lines(0) + kLineDepth * lines_bytes() + (round % plan::kRoundDepth) * slot_room();
}

std::size_t DomainLayout::lines_bytes() const { return round_up(packets(packet_chunks()), kPage); }

std::size_t DomainLayout::slot_room() const { return round_up(slot_bytes, kPage); }

WindowLayout::WindowLayout(int size, std::size_t slot_bytes)
    : size_(size),
      group_{.members = size, .signals = plan::signals_of_pair(size), .slot_bytes = slot_bytes},
      pair_{.members = 2, .signals = plan::signals_of_pair(2), .slot_bytes = slot_bytes} {}

std::size_t WindowLayout::board(Rank from) const {
  return round_up(notice(size_), kPage) + static_cast<std::size_t>(from) * kBoardBytes;
}

std::size_t WindowLayout::mailbox(Rank from) const {
  return board(size_) + static_cast<std::size_t>(from) * kMailboxBytes;
}

std::size_t WindowLayout::group_region() const { return group_mirror(size_); }

std::size_t WindowLayout::region_to(Rank peer) const {
  return group_region() + round_up(group_.bytes(), kPage) +
         2 * static_cast<std::size_t>(peer) * round_up(pair_.bytes(), kPage);
}

std::size_t WindowLayout::region_from(Rank peer) const { return region_to(peer) + round_up(pair_.bytes(), kPage); }

std::size_t WindowLayout::bytes() const { return region_to(size_); }

}  // namespace accord::exec
