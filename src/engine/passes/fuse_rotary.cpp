// Rotary embedding as transformers writes it: x * cos + cat(-x[half:], x[:half]) * sin, over the last dimension. It
// becomes one "accord.rotary".
#include "engine/graph/node_access.hpp"
#include "engine/passes/makers.hpp"
#include "engine/passes/passes.hpp"

namespace accord::engine {
namespace {

bool is_dimension(const Node& node, std::string_view argument, std::size_t dims, std::size_t dim) {
  const Result<std::int64_t> given = integer_argument(node, argument, 0);
  if (!given.ok()) return false;
  return *given == static_cast<std::int64_t>(dim) ||
         *given == static_cast<std::int64_t>(dim) - static_cast<std::int64_t>(dims);
}

enum class Half : std::uint8_t { kFirst, kSecond };

// Returns the tensor of which `slice` takes the given half of the last dimension.
std::optional<ValueId> half_of(const Producers& producers, const Node* slice, Half half) {
  const auto x = slice == nullptr ? std::nullopt : tensor_argument(*slice, "self");
  if (!x) return std::nullopt;
  const SymbolicShape& shape = producers.value(*x).shape;
  if (shape.empty() || !shape.back().is_constant() || shape.back().constant() % 2 != 0) return std::nullopt;
  const std::int64_t width = shape.back().constant();
  const Result<std::int64_t> start = integer_argument(*slice, "start", 0);
  const Result<std::int64_t> end = integer_argument(*slice, "end", width);
  const Result<std::int64_t> step = integer_argument(*slice, "step", 1);
  if (!start.ok() || !end.ok() || !step.ok() || *step != 1) return std::nullopt;
  if (!is_dimension(*slice, "dim", shape.size(), shape.size() - 1)) return std::nullopt;
  const std::int64_t first = half == Half::kFirst ? 0 : width / 2;
  return *start == first && std::min(*end, width) == first + width / 2 ? x : std::nullopt;
}

// Returns x of cat(-x[half:], x[:half]).
std::optional<ValueId> rotated_half(const Producers& producers, std::optional<ValueId> value) {
  const Node* cat = producers.find(value, "aten.cat");
  const Argument* argument = cat == nullptr ? nullptr : find_argument(*cat, "tensors");
  const auto* parts = argument == nullptr ? nullptr : std::get_if<std::vector<ValueRef>>(argument);
  if (parts == nullptr || parts->size() != 2) return std::nullopt;
  const std::size_t dims = producers.value(*value).shape.size();
  if (!is_dimension(*cat, "dim", dims, dims - 1)) return std::nullopt;
  const Node* negative = producers.find(parts->front().id, "aten.neg");
  const Node* second = negative == nullptr ? nullptr : producers.find(tensor_argument(*negative, "self"), "aten.slice");
  const auto from = half_of(producers, second, Half::kSecond);
  const auto other = half_of(producers, producers.find(parts->back().id, "aten.slice"), Half::kFirst);
  return from && from == other ? from : std::nullopt;
}

// Returns true if x is [1, heads, tokens, dim] and `table` has a factor for each of its elements: [1, 1, tokens, dim].
bool is_table_for(const Producers& producers, ValueId table, ValueId x) {
  const SymbolicShape& shape = producers.value(table).shape;
  const SymbolicShape& of_x = producers.value(x).shape;
  return of_x.size() == 4 && shape.size() == 4 && of_x[0] == SymbolicInt(1) && shape[0] == SymbolicInt(1) &&
         shape[1] == SymbolicInt(1) && shape[2] == of_x[2] && shape[3] == of_x[3];
}

std::optional<Node> rotary(const Producers& producers, const Node& node) {
  const auto terms = op_family(node.op) == "aten.add" ? operands(node) : std::nullopt;
  if (!terms) return std::nullopt;
  const Node* straight = producers.find(terms->self, "aten.mul");
  const Node* crossed = producers.find(terms->other, "aten.mul");
  if (straight == nullptr || crossed == nullptr) return std::nullopt;
  const auto with_cos = operands(*straight);
  const auto with_sin = operands(*crossed);
  if (!with_cos || !with_sin) return std::nullopt;
  const auto x = rotated_half(producers, with_sin->self);
  if (!x || with_cos->self != *x || producers.value(*x).dtype != producers.value(node.outputs.front()).dtype) {
    return std::nullopt;
  }
  if (!is_table_for(producers, with_cos->other, *x) || !is_table_for(producers, with_sin->other, *x))
    return std::nullopt;
  Node fused = node;
  fused.op = "accord.rotary";
  fused.arguments = {{"input", ValueRef{*x}}, {"cos", ValueRef{with_cos->other}}, {"sin", ValueRef{with_sin->other}}};
  return fused;
}

}  // namespace

Graph fuse_rotary(Graph graph) {
  const Producers producers(graph);
  for (Node& node : graph.nodes) {
    if (auto fused = rotary(producers, node)) node = std::move(*fused);
  }
  return graph;
}

}  // namespace accord::engine
