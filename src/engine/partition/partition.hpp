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

/// The part of one weight that this rank needs.
struct TensorPart {
  std::string tensor;               ///< its name in the manifest
  std::vector<std::int64_t> shape;  ///< of the part
  std::uint64_t first_granule = 0;
  std::uint64_t granules = 0;
  bool sharded = false;  ///< false if every rank holds all of it, however many there are
  int pieces = 1;        ///< pieces of its inputs that products compute one by one (`canonical_ranks`)
  bool operator==(const TensorPart&) const = default;
};

/// This rank's model. `graph` has local shapes and contains the collectives ("accord.all_reduce"). `parts` has one
/// entry for each of its parameters, in order.
struct Partition {
  Graph graph;
  std::vector<TensorPart> parts;
  /// How the ranks share each value, by ValueId of the whole graph; nullopt if every rank has all of it.
  std::vector<std::optional<Shard>> shards;
};

/// Fails with kInvalidArgument unless `place` is valid.
Status check_place(const std::string& group, const GroupPlace& place);

/// Applies the manifest's sharding to `graph` for a rank that has `places`; a group that is not in `places` has one
/// rank.
///
/// Shards propagate from the weights through the graph. A linear layer whose weight is divided by its outputs (column)
/// yields a tensor that is divided in its last dimension. A linear layer whose weight is divided by its inputs (row)
/// takes such a tensor and yields partial sums, which an all_reduce adds up; its bias is added once, after that.
///
/// `canonical_ranks`: 0, or a power of two that every group's size divides. If it is not 0, the graph computes
/// bit-identical results with every such size. The weight's inputs are divided into `canonical_ranks` equal pieces;
/// each row-parallel product is one partial product for each of the pieces that this rank has ("pieces"), and its sums
/// stay float32 until all are added. Also fails with kInvalidArgument if a weight's units cannot be divided that way.
///
/// Experts that are divided one by one: ranks that all run the same rows add up the results of their experts. Over a
/// group that divides the batch (is_batch_parallel), rows are sent to the ranks whose experts they chose, and the
/// results are sent back ("accord.dispatch", "accord.dispatched_experts", "accord.combine"). `batch_symbol` is then the
/// size that is divided among the ranks.
///
/// Fails with kInvalidArgument for a group that the package does not have, an invalid place, more ranks than units to
/// share, or a row weight that does not line up with its input. Fails with kUnsupported for an op that cannot carry a
/// shard; the error names it and its place in the model.
/// REQUIRES: graph and manifest are those of one package, as returned by Package::open.
Result<Partition> partition(const Graph& graph, const Manifest& manifest,
                            const std::map<std::string, GroupPlace>& places, int canonical_ranks = 0,
                            const std::string& batch_symbol = "");

}  // namespace accord::engine
