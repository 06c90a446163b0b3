#pragma once
// Rows on their way back: the sum of each token's slots, in the canonical order.

#include "expert/host/host_state.hpp"
#include "expert/host/rounds.hpp"
#include "expert/rows.hpp"
#include "kernels/row_tree.hpp"

namespace accord::expert {

/// The terms that a call adds up.
struct BackCall {
  ConstRows slots;
  DType dtype = DType::kFloat32;
  int hidden = 0;
  RowBytes size;
  bool weighted = false;  ///< by the HostState's weights
  std::byte* result = nullptr;
  DType result_dtype = DType::kFloat32;
};

/// Half the staging memory has one part for the tokens of each rank. Returns the minimum bytes of a part: the pieces
/// of one token.
std::size_t min_back_staging(const ExpertGroupConfig& config, int max_nodes);

/// Runs one combine or dispatch_backward. REQUIRES: the ranks have met; they finish the call together
/// afterwards.
class RowsBack {
 public:
  RowsBack(HostState& state, const Handle& handle, const BackCall& call);
  Status run();

 private:
  /// Bytes of a piece: a row or a sum that another rank has prepared.
  std::size_t piece_bytes(Node node) const { return node.last - node.first == 1 ? leaf_bytes_ : partial_bytes_; }
  bool is_read_in_place(Rank from, Rank reader) const;

  /// Returns the leaves of a token, which are stored in the scratch memory.
  std::span<const Leaf> leaves(Rank rank, std::int64_t token);
  Rank holder(const Leaf& leaf) const { return handle_.placement->holder[leaf.place]; }
  int domain(const Leaf& leaf) const { return state_.shared.domains().of(holder(leaf)); }

  void stage(std::int64_t round);
  Status exchange_sums(std::int64_t round);
  void add_up(std::int64_t round);
  /// Writes the sum of the operands, which are everything below `node`, as a piece.
  void write_piece(Node node, std::byte* to);

  // The operands of a sum.
  void begin() { operands_ = 0; }
  void add_leaf(const Leaf& leaf);
  void add_piece(const Leaf& first, Node node, const std::byte* piece);
  /// Adds everything below `node`, which is all in this domain, for a token of `rank`: read in place, or from the
  /// pieces that ranks staged.
  void add_node(Rank rank, std::span<const Leaf> leaves, Node node);
  void finish(std::byte* to, DType dtype);

  /// Moves the read position of each rank's pieces to its first piece for the tokens of `of_tokens`.
  void begin_pieces(Rank of_tokens, std::int64_t round);

  HostState& state_;
  Scratch& scratch_;
  const Handle& handle_;
  const Routing& routing_;
  const Rank me_;
  const BackCall call_;
  const DType accumulator_;
  std::size_t leaf_bytes_, partial_bytes_;
  bool stages_ = false;
  Rounds rounds_;
  int operands_ = 0;
};

}  // namespace accord::expert
