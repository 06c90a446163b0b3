#pragma once
// From the whole model to this rank's part of it: a pure function of graph, manifest and places.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/package/package.hpp"
#include "engine/partition/shard.hpp"

namespace accord::engine {

/// What this rank needs of one weight.
struct TensorPart {
  std::string tensor;               ///< its name in the manifest
  std::vector<std::int64_t> shape;  ///< of the part
  std::uint64_t first_granule = 0;
  std::uint64_t granules = 0;
  bool sharded = false;  ///< false if every rank holds all of it, however many there are
  int pieces = 1;        ///< of its inputs, of which products are made one by one (Partition of canonical ranks)
  bool operator==(const TensorPart&) const = default;
};

/// This rank's model. `graph` has local shapes and the collectives in place ("accord.all_reduce"); `parts` go with its
/// parameters, one each.
struct Partition {
  Graph graph;
  std::vector<TensorPart> parts;
  std::vector<std::optional<Shard>>
      shards;  ///< by ValueId of the whole graph: how the ranks share it; none if each has all
};

/// kInvalidArgument unless there is such a place.
Status check_place(const std::string& group, const GroupPlace& place);

/// Applies the manifest's sharding to `graph` for a rank that has `places`; a group that is absent there has one rank.
///
/// Shards flow from the weights through the graph. A linear layer whose weight is divided by its outputs (column) gives a
/// tensor divided in its last dimension; one whose weight is divided by its inputs (row) takes such a tensor and gives
/// partial sums, which an all_reduce adds; its bias is added once, after that.
///
/// `canonical_ranks`: 0, or a power of two that every group's size divides. Then the graph computes the same bits at every such size:
/// each row-parallel product is one partial product for each piece that this rank has of `canonical_ranks` equal pieces of the
/// weight's inputs ("pieces"), and its sums stay float32 until all are added. kInvalidArgument also if a weight's units cannot be
/// divided so.
///
/// Experts that are divided one by one: ranks that all run the same rows add up what theirs make of them. Over a group that divides the
/// batch (divides_batch) rows go to the ranks whose experts they chose and what is made of them comes back ("accord.dispatch",
/// "accord.dispatched_experts", "accord.combine"); `batch_symbol`: the size whose parts the ranks run then.
///
/// kInvalidArgument: a group unknown to the package, a place that cannot be, more ranks than units to share, a row weight that
/// does not line up with what comes in. kUnsupported: an op that cannot carry a shard, named with its place in the model.
/// REQUIRES: graph and manifest are those of one package, as Package::open gives them.
Result<Partition> partition(const Graph& graph, const Manifest& manifest,
                            const std::map<std::string, GroupPlace>& places, int canonical_ranks = 0,
                            const std::string& batch_symbol = "");

}  // namespace accord::engine
