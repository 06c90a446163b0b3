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
std::vector<int> producers(const Graph& graph, std::size_t values) {
  std::vector<int> found(values, kNone);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId output : graph.nodes[i].outputs) {
      if (static_cast<std::size_t>(output) < values) found[static_cast<std::size_t>(output)] = static_cast<int>(i);
    }
  }
  return found;
}

int producer_of(const Node& node, const std::vector<int>& producers) {
  for (const ValueId output : node.outputs) {
    if (const int producer = producers[static_cast<std::size_t>(output)]; producer != kNone) return producer;
  }
  return kNone;
}

struct Loss {
  std::string_view pass;
  bool in_fusion = false;  // lost in a pass that fuses, or removed as dead after one
};

std::vector<Loss> losses(const Graph& graph, Graph& after) {
  std::vector<Loss> lost(graph.nodes.size());
  bool fused = false;
  after = graph;
  for (const Pass& pass : passes()) {
    after = pass.apply(std::move(after));
    const bool fuses = pass.name.starts_with("fuse");
    fused = fused || fuses;
    const std::vector<int> remaining_producers = producers(after, graph.values.size());
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!lost[i].pass.empty() || producer_of(graph.nodes[i], remaining_producers) != kNone) continue;
      lost[i] = {pass.name, fuses || (fused && pass.name == "remove_dead_nodes")};
    }
  }
  return lost;
}

}  // namespace

std::vector<Outcome> outcomes(const Graph& graph) {
  Graph after;
  const std::vector<Loss> lost = losses(graph, after);
  const std::vector<int> remaining_producers = producers(after, graph.values.size());
  std::vector<Outcome> found(graph.nodes.size());
  std::vector<int> leads_to(graph.values.size(), kNone);  // the fused op that a value is an input of
  // Backwards, so that the readers of a node's output are known before the node.
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    Outcome& outcome = found[i];
    if (const int producer = producer_of(node, remaining_producers); producer != kNone) {
      const bool changed = after.nodes[static_cast<std::size_t>(producer)].op != node.op;
      outcome = {changed ? Outcome::Kind::kFused : Outcome::Kind::kKept, producer, {}};
    } else {
      outcome = {Outcome::Kind::kRemoved, kNone, lost[i].pass};
      for (const ValueId output : node.outputs) {
        const int into = leads_to[static_cast<std::size_t>(output)];
        if (lost[i].in_fusion && into != kNone) outcome = {Outcome::Kind::kFused, into, {}};
      }
    }
    if (outcome.kind != Outcome::Kind::kFused) continue;
    for_each_input(node, [&](ValueId id) { leads_to[static_cast<std::size_t>(id)] = outcome.node; });
  }
  return found;
}

}  // namespace accord::engine
