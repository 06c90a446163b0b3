#pragma once
// The memory of all ranks as a plan sees it: what each chunk holds, and who touched it last.

#include <optional>
#include <vector>

#include "plan/plan.hpp"
#include "plan/step_rules.hpp"
#include "plan/verifier.hpp"
#include "plan/verifier/clocks.hpp"
#include "plan/verifier/expression.hpp"

namespace accord::plan {

/// One read or write.
struct Access {
  Epoch epoch;
  StepPlace place;
  int round = 0;
};

/// One chunk in one round.
struct Cell {
  Term value = Term::kUnknown;
  int length_class = 0;  ///< see length_classes()
  int written_round = -1;
  bool rounded = false;  ///< a sum that was rounded to the element, so that no more can be added to it
  std::optional<Access> writer;
  std::vector<Access> readers;  ///< since the last write, one a lane
};

/// Cells of `rounds` rounds. Scratch, partials, packets and multicast of rounds that are kRoundDepth apart are the same cells, and so are input and
/// output where they are the same memory. Input holds the leaves of its rank from the start.
class Memory {
 public:
  Memory(const Plan& plan, Aliasing aliasing, int rounds, Expressions& expressions);

  Cell& cell(const Chunk& chunk, int round) { return cells_[index(chunk, round)]; }
  bool same_cell(const Chunk& a, const Chunk& b, int round) const { return index(a, round) == index(b, round); }

  /// Notes a read; gives the write that it races with.
  static std::optional<Access> read(Cell& cell, const Access& access, const Clocks& clocks);
  /// Notes a write; gives the read or write that it races with.
  static std::optional<Access> write(Cell& cell, const Access& access, const Clocks& clocks);

 private:
  std::size_t index(const Chunk& chunk, int round) const;
  /// The chunk whose cell `chunk` is.
  Chunk owner(const Chunk& chunk) const;

  const Plan& plan_;
  bool in_place_;
  std::size_t rounds_;
  std::size_t cells_per_rank_ = 0;
  std::vector<Cell> cells_;
};

}  // namespace accord::plan
