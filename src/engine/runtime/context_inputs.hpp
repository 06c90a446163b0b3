#pragma once
// Context parallelism of a language model: each rank of kContextGroup computes its rows of a run.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/program/context_rows.hpp"

namespace accord::engine {

/// Returns this rank's share for its place in the group. Fails with kInvalidArgument if the group's size does not
/// divide `canonical_ranks`, and with kUnsupported for a graph (cut for this rank) that is not of a language model, or
/// has layers that need all rows of a sequence.
Result<ContextShare> find_context_share(const Graph& graph, bool is_language_model, const GroupPlace& place,
                                        int canonical_ranks);

/// Cuts the inputs of a language model's run.
class ContextInputs {
 public:
  /// Returns this rank's inputs and divides rows(). `inputs`: token ids, positions, the rows of which all ranks need
  /// logits and, if the package has adapters, that of each token. REQUIRES: they match the graph, and `batch` is
  /// checked. The result is valid until the next call.
  /// Fails with kInvalidArgument, alike on all ranks, for a row that does not exist.
  Result<std::span<const TensorView>> cut(const ContextShare& share, std::span<const TensorView> inputs,
                                          std::span<const BatchRows> batch, std::int64_t block_tokens);
  const ContextRows& rows() const { return rows_; }

 private:
  ContextRows rows_;
  std::vector<std::int64_t> ids_, positions_, wanted_, adapters_;  // this rank's inputs
  std::vector<TensorView> inputs_;                                 // these as tensors
  std::vector<std::int64_t> everywhere_;                           // the wanted rows in ascending order
};

}  // namespace accord::engine
