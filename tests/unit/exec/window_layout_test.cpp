// No two parts of a window overlap, for any number of ranks.
#include "exec/window_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace accord::exec {
namespace {

struct Piece {
  std::string name;
  std::size_t first, bytes;
};

void expect_disjoint(std::vector<Piece> pieces, std::size_t room) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.first < b.first; });
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i)
    ASSERT_LE(pieces[i].first + pieces[i].bytes, pieces[i + 1].first)
        << pieces[i].name << " and " << pieces[i + 1].name;
  ASSERT_LE(pieces.back().first + pieces.back().bytes, room);
}

TEST(WindowLayout, parts_of_a_window_do_not_overlap) {
  for (const int size : {1, 2, 3, 8, 64}) {
    const WindowLayout layout(size, 64 << 10);
    std::vector<Piece> pieces = {{"alarm", WindowLayout::alarm(), 8},
                                 {"group", layout.group_region(), layout.group().bytes()}};
    for (Rank r = 0; r < size; ++r) {
      pieces.push_back({"notice", WindowLayout::notice(r), WindowLayout::kNoticeBytes});
      pieces.push_back({"board", layout.board(r), WindowLayout::kBoardBytes});
      pieces.push_back({"to", layout.region_to(r), layout.pair().bytes()});
      pieces.push_back({"from", layout.region_from(r), layout.pair().bytes()});
    }
    expect_disjoint(pieces, layout.bytes());
  }
}

TEST(WindowLayout, parts_of_a_domain_are_aligned_and_do_not_overlap) {
  for (const int size : {1, 2, 5, 64}) {
    const DomainLayout layout = WindowLayout(size, 64 << 10).group();
    std::vector<Piece> pieces = {{"completed", DomainLayout::completed(), kLine}};
    for (std::uint64_t round = 1; round <= plan::kRoundDepth; ++round)
      pieces.push_back({"slot", layout.slot(round), layout.slot_bytes});
    for (std::uint64_t round = 1; round <= kCellDepth; ++round) {
      pieces.push_back({"record", DomainLayout::record(round), kLine});
      for (int chunk = 0; chunk < layout.packet_chunks(); ++chunk)
        pieces.push_back({"cell", DomainLayout::cells(round) + DomainLayout::cell(chunk), 2 * kCellData});
    }
    for (std::uint64_t round = 1; round <= kLineDepth; ++round) {
      const std::size_t lines = layout.lines(round);
      for (int from = 0; from < size; ++from) {
        for (int id = 0; id < layout.signals; ++id) pieces.push_back({"flag", lines + layout.flag(from, id), kLine});
      }
      for (int chunk = 0; chunk < layout.packet_chunks(); ++chunk)
        pieces.push_back({"packets", lines + layout.packets(chunk), kPacketCapacity / kPacketData * kLine});
    }
    for (const Piece& piece : pieces) ASSERT_EQ(piece.first % (piece.name == "cell" ? 16 : kLine), 0u) << piece.name;
    expect_disjoint(pieces, layout.bytes());
  }
}

TEST(WindowLayout, a_pair_has_room_for_the_signals_of_a_plan_of_two_ranks) {
  const WindowLayout layout(5, 4096);
  EXPECT_EQ(layout.pair().signals, 16);
  EXPECT_EQ(layout.group().signals, 16);
  EXPECT_EQ(WindowLayout(20, 4096).group().signals, 40);
}

TEST(WindowLayout, rounds_share_slots_and_lines_only_with_rounds_one_depth_later) {
  const DomainLayout layout = WindowLayout(2, 4096).group();
  EXPECT_EQ(layout.slot(5), layout.slot(5 + plan::kRoundDepth));
  EXPECT_NE(layout.slot(5), layout.slot(6));
  EXPECT_EQ(layout.lines(5), layout.lines(5 + kLineDepth));
  for (std::uint64_t later = 6; later < 5 + kLineDepth; ++later) EXPECT_NE(layout.lines(5), layout.lines(later));
  EXPECT_EQ(DomainLayout::cells(5), DomainLayout::cells(5 + kCellDepth));
  EXPECT_EQ(DomainLayout::record(5), DomainLayout::record(5 + kCellDepth));
  for (std::uint64_t later = 6; later < 5 + kCellDepth; ++later) {
    EXPECT_NE(DomainLayout::cells(5), DomainLayout::cells(later));
    EXPECT_NE(DomainLayout::record(5), DomainLayout::record(later));
  }
}

}  // namespace
}  // namespace accord::exec
