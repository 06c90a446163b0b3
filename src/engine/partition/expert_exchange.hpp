#pragma once
// Layers of experts whose ranks have different rows: rows are sent to the ranks that have their experts, and back.

#include <cstdint>
#include <string>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Experts that the ranks of a group divide, of a model whose batch they divide too.
struct ExchangedExperts {
  std::string group;
  int ranks = 1;
  std::int64_t in_all = 0, mine = 0;  ///< experts of all ranks, and of this one
  std::string batch_symbol;
};

/// Appends to `local` what computes `node`, a layer of experts of `whole`: dispatch, this rank's experts on the rows
/// that arrived, combine. Fails with kUnsupported if rows change their width, or if a size decreases as the batch
/// grows.
Status dispatch_and_combine(const Graph& whole, Node node, const ExchangedExperts& experts, Graph& local);

}  // namespace accord::engine
