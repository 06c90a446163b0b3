#pragma once
// The outcome of the passes for each op of a model.

#include <string_view>
#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// The outcome for one node.
struct Outcome {
  enum class Kind : std::uint8_t {
    kKept,     ///< runs unchanged
    kFused,    ///< is part of another op
    kRemoved,  ///< computes nothing that is needed
  };
  Kind kind = Kind::kKept;
  int node = -1;          ///< in the graph after the passes: the node itself, or the op that it is part of
  std::string_view pass;  ///< the pass that removed it
};

/// Runs the passes on `graph` and returns the outcome for each of its nodes.
std::vector<Outcome> outcomes(const Graph& graph);

}  // namespace accord::engine
