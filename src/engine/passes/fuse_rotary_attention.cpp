// Rotary embedding of the queries and keys of attention over the cache becomes a part of the attention, which gets
// queries and keys as they were before and the tables "cos" and "sin". A device can then rotate heads and write them to
// its cache in one kernel.
#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"
#include "engine/passes/makers.hpp"
#include "engine/passes/passes.hpp"

namespace accord::engine {
namespace {

// Returns the rotary embedding that produces an argument of `attention` and has no other user; nullptr if there is
// none.
const Node* rotation_of(const Producers& producers, const Node& attention, std::string_view argument) {
  const Node* const rotary = producers.find(tensor_argument(attention, argument), "accord.rotary");
  return rotary != nullptr && producers.used_once(*rotary) ? rotary : nullptr;
}

void fuse(const Producers& producers, Node& attention) {
  const Node* const query = rotation_of(producers, attention, "query");
  const Node* const key = rotation_of(producers, attention, "key");
  if (query == nullptr || key == nullptr) return;
  for (const char* const table : {"cos", "sin"})
    if (tensor_argument(*query, table) != tensor_argument(*key, table)) return;
  attention.arguments["query"] = query->arguments.at("input");
  attention.arguments["key"] = key->arguments.at("input");
  for (const char* const table : {"cos", "sin"}) attention.arguments[table] = query->arguments.at(table);
}

}  // namespace

Graph fuse_rotary_attention(Graph graph) {
  const Producers producers(graph);
  for (Node& node : graph.nodes)
    if (node.op == kCachedAttention && tensor_argument(node, "value")) fuse(producers, node);
  return graph;
}

}  // namespace accord::engine
