#pragma once
// The memory of all ranks as a plan sees it: the content of each chunk, and its last accesses.

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
  bool rounded = false;  ///< a sum rounded to the element type, so that nothing can be added to it any more
  std::optional<Access> writer;
  std::vector<Access> readers;  ///< since the last write, one per lane
};

/// Cells of `rounds` rounds. Scratch, partials, packets and multicast of rounds that are kRoundDepth apart are the
/// same cells, and so are input and output if they are the same memory. Input holds the leaves of its rank from the
/// start.
class Memory {
 public:
  Memory(const Plan& plan, Aliasing aliasing, int rounds, Expressions& expressions);

  Cell& cell(const Chunk& chunk, int round) { return cells_[index(chunk, round)]; }
  bool same_cell(const Chunk& a, const Chunk& b, int round) const { return index(a, round) == index(b, round); }

  /// Records a read and returns the write that it races with.
  static std::optional<Access> read(Cell& cell, const Access& access, const Clocks& clocks);
  /// Records a write and returns the read or write that it races with.
  static std::optional<Access> write(Cell& cell, const Access& access, const Clocks& clocks);

 private:
  std::size_t index(const Chunk& chunk, int round) const;
  /// The chunk that owns the cell of `chunk`.
  Chunk owner(const Chunk& chunk) const;

  const Plan& plan_;
  bool in_place_;
  std::size_t rounds_;
  std::size_t cells_per_rank_ = 0;
  std::vector<Cell> cells_;
};

}  // namespace accord::plan
