#pragma once
// Data parallelism: the ranks of a group each run a part of a batch, and all get the whole outputs.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// How a batch is divided: the symbol that is the first dimension of every output, and of those inputs that are cut along it.
struct BatchSplit {
  std::string symbol;
  std::int64_t min = 1;  ///< rows of a run
  std::int64_t max = 1;
  std::vector<bool> cut;  ///< by input
  GroupPlace place;
};

/// kUnsupported if the outputs do not all begin with one dimension of an input, or depend on it elsewhere.
Result<BatchSplit> find_batch_split(const Graph& graph, const GroupPlace& place);

/// The rows of a batch that a rank runs: [first, first + count), of which [first + skip, first + skip + share) are its own. More than
/// its own only where that are fewer than a run may have.
struct BatchPart {
  std::int64_t first = 0, count = 0, skip = 0, share = 0;
};

/// The part of rank `rank`. kInvalidArgument, alike for all ranks, if a batch of `rows` cannot be divided.
Result<BatchPart> batch_part(const BatchSplit& split, std::int64_t rows, Rank rank);

/// Outputs of the whole batch, put together.
class BatchOutputs {
 public:
  /// Gathers the outputs of each rank's part of a batch of `rows`. Collective.
  Result<std::vector<TensorView>> gather(const BatchSplit& split, std::int64_t rows,
                                         const std::vector<TensorView>& outputs, Communicator communicator);

 private:
  std::vector<std::vector<std::byte>> memory_;  // by output
};

/// This rank's part of the inputs, where they lie. REQUIRES: the inputs that are cut have `part.first + part.count` rows.
std::vector<TensorView> inputs_of_part(const BatchSplit& split, const BatchPart& part,
                                       std::span<const TensorView> inputs);

/// The rows of the batch: kInvalidArgument if inputs that are cut differ in them, by the names that `graph` gives them.
Result<std::int64_t> batch_rows(const BatchSplit& split, const Graph& graph, std::span<const TensorView> inputs);

}  // namespace accord::engine
