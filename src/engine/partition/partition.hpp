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
  bool operator==(const TensorPart&) const = default;
};

/// This rank's model. `graph` has local shapes and the collectives in place ("accord.all_reduce"); `parts` go with its
/// parameters, one each.
struct Partition {
  Graph graph;
  std::vector<TensorPart> parts;
};

/// Applies the manifest's sharding to `graph` for a rank that has `places`; a group that is absent there has one rank.
///
/// Shards flow from the weights through the graph. A linear layer whose weight is divided by its outputs (column) gives a
/// tensor divided in its last dimension; one whose weight is divided by its inputs (row) takes such a tensor and gives
/// partial sums, which an all_reduce adds; its bias is added once, after that.
///
/// kInvalidArgument: a group unknown to the package, a place that cannot be, more ranks than units to share, a row weight that
/// does not line up with what comes in. kUnsupported: an op that cannot carry a shard, named with its place in the model.
/// REQUIRES: graph and manifest are those of one package, as Package::open gives them.
Result<Partition> partition(const Graph& graph, const Manifest& manifest,
                            const std::map<std::string, GroupPlace>& places);

}  // namespace accord::engine
