#pragma once
// Data parallelism: each rank of a group runs a part of a batch, and all ranks get the whole outputs.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// How a batch is divided: `symbol` is the first dimension of every output and of the inputs that are cut.
struct BatchSplit {
  std::string symbol;
  std::int64_t min = 1;  ///< rows of one run
  std::int64_t max = 1;
  std::vector<bool> cut;  ///< indexed by input
  GroupPlace place;
};

/// Fails with kUnsupported if the outputs do not all begin with one dimension of an input, or if they depend on it
/// elsewhere.
Result<BatchSplit> find_batch_split(const Graph& graph, const GroupPlace& place);

/// The rows of a batch that one rank runs: [first, first + count), of which [first + skip, first + skip + share) are
/// its own. It runs more rows than its own only if its share is smaller than the minimum of a run.
struct BatchPart {
  std::int64_t first = 0, count = 0, skip = 0, share = 0;
};

/// Returns the part of rank `rank`. Fails with kInvalidArgument, alike on all ranks, if a batch of `rows` cannot be
/// divided.
Result<BatchPart> batch_part(const BatchSplit& split, std::int64_t rows, Rank rank);

/// The outputs of a whole batch, gathered from all ranks.
class BatchOutputs {
 public:
  /// Gathers the outputs of each rank's part of a batch of `rows`. Collective.
  Result<std::vector<TensorView>> gather(const BatchSplit& split, std::int64_t rows,
                                         const std::vector<TensorView>& outputs, Communicator communicator);

 private:
  std::vector<std::vector<std::byte>> memory_;  // indexed by output
};

/// Returns this rank's part of the inputs, without a copy. REQUIRES: the inputs that are cut have at least
/// `part.first + part.count` rows.
std::vector<TensorView> inputs_of_part(const BatchSplit& split, const BatchPart& part,
                                       std::span<const TensorView> inputs);

/// Returns the number of rows in the batch. Fails with kInvalidArgument if the inputs that are cut disagree; the
/// error uses the names in `graph`.
Result<std::int64_t> batch_rows(const BatchSplit& split, const Graph& graph, std::span<const TensorView> inputs);

}  // namespace accord::engine
