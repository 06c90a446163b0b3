#pragma once
// Rows on their way from tokens to the slots of experts.

#include "expert/group.hpp"
#include "kernels/copy.hpp"

namespace accord::expert {

/// Runs one dispatch or combine_backward, of rows and their scales. REQUIRES: the ranks have met; they finish the
/// call together afterwards.
class RowsOut {
 public:
  RowsOut(Group& group, const Handle& handle, RowSize size, ConstRowsAt tokens, RowsAt slots);
  Status run();

 private:
  /// Whether the rows of rank `from` are read in place, and whether the slots of rank `to` are written in place.
  bool is_read_in_place(Rank from) const;
  bool is_written_in_place(Rank to) const;
  /// Whether this rank writes its rows into the slots of rank `to`.
  bool is_mine_to_write(Rank to) const;

  void clear_padding();
  void push();
  void push_rows();
  Status begin_round(std::int64_t round);
  void stage(std::int64_t round);
  Status exchange_guest_rows(std::int64_t round);
  void pull(std::int64_t round);
  void pull_rows(std::int64_t round);
  template <typename RowOf>
  void pull_from(Rank from, std::int64_t round, bool of_guest, RowOf row_of);
  void store_slot(std::int64_t slot, ConstRowsAt row);
  /// Writes a row and its scales.
  void store(RowsAt to, ConstRowsAt row) const;

  /// A range of a rank's tokens in a round.
  struct Span {
    std::int64_t first = 0, last = 0;
  };
  Span tokens_in(Rank rank, std::int64_t round) const;
  /// Whether a token has a choice in `domain`.
  bool has_choice_in(Rank rank, std::int64_t token, int domain) const;
  std::int64_t rows_to(Rank rank, std::int64_t round, int domain) const;

  Group& group_;
  const Handle& handle_;
  const Routing& routing_;
  const Rank me_;
  const RowSize size_;
  const ConstRowsAt tokens_;
  const RowsAt slots_;
  kernels::Store how_ = kernels::Store::kTemporal;
  bool stages_ = false;     // some rows go through staging memory
  std::int64_t chunk_ = 0;  // tokens of each rank in a round
  std::int64_t rounds_ = 0;
};

}  // namespace accord::expert
