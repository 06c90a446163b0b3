// Values keep their ids through all passes. If a node's output still has a producer, the node was kept, or fused if
// the producer is another op. A node that was lost during or after a fusion belongs to the fused op that its output
// led to; any other lost node was removed for good.
#include "engine/report/fates.hpp"

#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/passes/passes.hpp"

namespace accord::engine {
namespace {

constexpr int kNone = -1;

// Returns the node that produces each value.
std::vector<int> makers(const Graph& graph, std::size_t values) {
  std::vector<int> found(values, kNone);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId output : graph.nodes[i].outputs) {
      if (static_cast<std::size_t>(output) < values) found[static_cast<std::size_t>(output)] = static_cast<int>(i);
    }
  }
  return found;
}

int maker_of(const Node& node, const std::vector<int>& makers) {
  for (const ValueId output : node.outputs) {
    if (const int maker = makers[static_cast<std::size_t>(output)]; maker != kNone) return maker;
  }
  return kNone;
}

struct Loss {
  std::string_view pass;
  bool to_fusion = false;  // lost in a pass that fuses, or removed as dead after one
};

std::vector<Loss> losses(const Graph& graph, Graph& after) {
  std::vector<Loss> lost(graph.nodes.size());
  bool fused = false;
  after = graph;
  for (const Pass& pass : passes()) {
    after = pass.apply(std::move(after));
    const bool fuses = pass.name.starts_with("fuse");
    fused = fused || fuses;
    const std::vector<int> made = makers(after, graph.values.size());
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!lost[i].pass.empty() || maker_of(graph.nodes[i], made) != kNone) continue;
      lost[i] = {pass.name, fuses || (fused && pass.name == "remove_dead_nodes")};
    }
  }
  return lost;
}

}  // namespace

std::vector<Fate> fates(const Graph& graph) {
  Graph after;
  const std::vector<Loss> lost = losses(graph, after);
  const std::vector<int> made = makers(after, graph.values.size());
  std::vector<Fate> found(graph.nodes.size());
  std::vector<int> leads_to(graph.values.size(), kNone);  // the fused op that a value is an input of
  // Backwards, so that the readers of a node's output are known before the node.
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    Fate& fate = found[i];
    if (const int maker = maker_of(node, made); maker != kNone) {
      const bool changed = after.nodes[static_cast<std::size_t>(maker)].op != node.op;
      fate = {changed ? Fate::Kind::kFused : Fate::Kind::kKept, maker, {}};
    } else {
      fate = {Fate::Kind::kRemoved, kNone, lost[i].pass};
      for (const ValueId output : node.outputs) {
        const int into = leads_to[static_cast<std::size_t>(output)];
        if (lost[i].to_fusion && into != kNone) fate = {Fate::Kind::kFused, into, {}};
      }
    }
    if (fate.kind != Fate::Kind::kFused) continue;
    for_each_input(node, [&](ValueId id) { leads_to[static_cast<std::size_t>(id)] = fate.node; });
  }
  return found;
}

}  // namespace accord::engine
