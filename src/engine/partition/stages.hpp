#pragma once
// Pipeline stages: each rank of a group holds and runs a part of the graph's nodes, and sends what the next one needs.

#include <string>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Returns the part of `graph` (this rank's shard of the model, without dead nodes) that stage `place.rank` of
/// `place.size` runs. Stages follow each other in the order of the nodes and have about equal bytes of weights,
/// counted as in the `whole` model, so that all ranks find the same stages. They are cut where few values cross. If
/// the model has layers with a cache, each stage has at least one.
///
/// "accord.recv" receives the values of earlier stages, and "accord.send" passes values on. Each stage itself computes
/// what depends on the inputs alone. Every rank gets every output: "accord.broadcast" sends it from the stage that
/// produces it.
///
/// Fails with kInvalidArgument if the model cannot be cut into that many stages.
Result<Graph> cut_stage(Graph graph, const Graph& whole, const std::string& group, const GroupPlace& place);

}  // namespace accord::engine
