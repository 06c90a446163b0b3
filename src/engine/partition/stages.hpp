#pragma once
// Pipeline stages: one rank of a group holds and runs a part of the graph's nodes, and hands on what the next one needs.

#include <string>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// The part of `graph` (this rank's shard of the model, without dead nodes) that stage `place.rank` of `place.size` runs. Stages
/// follow each other in the order of the nodes and have about equal bytes of weights, counted as in the `whole` model, so that
/// all ranks find the same stages; they are cut where few values cross,
/// and each has attention that keeps its keys if the model has such. "accord.recv" brings what earlier stages made,
/// "accord.send" hands it on; what depends on the inputs alone each stage computes for itself. Every rank gets every
/// output: "accord.broadcast" from the stage that makes it.
///
/// kInvalidArgument if there are more stages than can be.
Result<Graph> cut_stage(Graph graph, const Graph& whole, const std::string& group, const GroupPlace& place);

}  // namespace accord::engine
