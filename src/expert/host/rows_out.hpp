#pragma once
// Rows on their way from tokens to the slots of experts.

#include "expert/host/host_state.hpp"
#include "expert/host/rounds.hpp"
#include "expert/rows.hpp"
#include "kernels/copy.hpp"

namespace accord::expert {

/// The rows that a call moves. Their weights are not moved here.
struct OutCall {
  ConstRows tokens;
  Rows slots;
  RowBytes size;
};

/// Runs one dispatch or combine_backward, of rows and their scales. REQUIRES: the ranks have met; they finish the
/// call together afterwards.
class RowsOut {
 public:
  RowsOut(HostState& state, const Handle& handle, const OutCall& call);
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
  enum class Sender { kNeighbor, kGuest };
  /// Stores the rows that a rank of this domain, or a guest of one, has for this rank's slots.
  template <typename RowOf>
  void pull_from(Rank from, std::int64_t round, Sender sender, RowOf row_of);
  void store_slot(std::int64_t slot, const ConstRows& row);
  /// Writes a row and its scales.
  void store(const Rows& to, const ConstRows& row) const;

  /// Whether a token has a choice in `domain`.
  bool has_choice_in(Rank rank, std::int64_t token, int domain) const;
  std::int64_t rows_to(Rank rank, std::int64_t round, int domain) const;

  HostState& state_;
  Scratch& scratch_;
  const Handle& handle_;
  const Routing& routing_;
  const Rank me_;
  const RowBytes size_;
  const ConstRows tokens_;
  const Rows slots_;
  kernels::Store how_ = kernels::Store::kTemporal;
  bool stages_ = false;  // some rows go through staging memory
  Rounds rounds_;
};

}  // namespace accord::expert
