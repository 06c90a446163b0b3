// Models spell the norm out: x * rsqrt(mean(x ^ 2, last dimension) + eps), in float32, then times a weight, before or
// after rounding to their own dtype. It becomes one "accord.rms_norm" of the tensor before the conversion, with the
// weight if there is one. fuse_add_norm can then join it with a residual sum in front of it, as for layer_norm.
#include "engine/graph/node_access.hpp"
#include "engine/passes/makers.hpp"
#include "engine/passes/passes.hpp"
#include "kernels/view.hpp"

namespace accord::engine {
namespace {

constexpr std::string_view kNorm = "accord.rms_norm";

bool is_last_dimension(const Node& mean, std::size_t dims) {
  const Argument* argument = find_argument(mean, "dim");
  const auto* list = argument == nullptr ? nullptr : std::get_if<std::vector<SymbolicInt>>(argument);
  if (list == nullptr || list->size() != 1 || !list->front().is_constant()) return false;
  const std::int64_t dim = list->front().constant();
  return dim == -1 || dim == static_cast<std::int64_t>(dims) - 1;
}

// x and eps of rsqrt(mean(x ^ 2) + eps).
struct Root {
  ValueId x;
  double eps;
};

std::optional<Root> root_of(const Producers& producers, ValueId value) {
  const Node* rsqrt = producers.find(value, "aten.rsqrt");
  const Node* add = rsqrt == nullptr ? nullptr : producers.find(tensor_argument(*rsqrt, "self"), "aten.add");
  const Node* mean = add == nullptr ? nullptr : producers.find(tensor_argument(*add, "self"), "aten.mean");
  const Node* square = mean == nullptr ? nullptr : producers.find(tensor_argument(*mean, "self"), "aten.pow");
  if (square == nullptr || find_argument(*add, "alpha") != nullptr || find_argument(*mean, "dtype") != nullptr) {
    return std::nullopt;
  }
  const auto x = tensor_argument(*square, "self");
  const auto eps = number_argument(*add, "other");
  const Result<bool> keep = flag_argument(*mean, "keepdim", false);
  if (!x || !eps || number_argument(*square, "exponent") != 2.0 || !keep.ok() || !*keep) return std::nullopt;
  const Value& seen = producers.value(*x);
  if (seen.dtype != DType::kFloat32 || !is_last_dimension(*mean, seen.shape.size())) return std::nullopt;
  return Root{*x, *eps};
}

// Returns the norm that `node` computes, without a weight.
std::optional<Node> bare_norm(const Producers& producers, const Node& node) {
  const auto factors = op_family(node.op) == "aten.mul" ? operands(node) : std::nullopt;
  if (!factors) return std::nullopt;
  for (const auto& [x, root_value] :
       {std::pair(factors->self, factors->other), std::pair(factors->other, factors->self)}) {
    const auto root = root_of(producers, root_value);
    if (!root || root->x != x) continue;
    const SymbolicInt& width = producers.value(x).shape.back();
    if (!width.is_constant()) return std::nullopt;
    ValueId input = x;
    if (const Node* widened = producers.find(x, "aten._to_copy")) {
      const auto narrow = tensor_argument(*widened, "self");
      if (narrow && kernels::is_real(producers.value(*narrow).dtype)) input = *narrow;
    }
    Node norm = node;
    norm.op = kNorm;
    norm.arguments = {
        {"input", ValueRef{input}}, {"normalized_shape", std::vector<SymbolicInt>{width}}, {"eps", root->eps}};
    return norm;
  }
  return std::nullopt;
}

// If `node` converts a norm, or multiplies it by a weight, and nothing else uses the norm: returns the norm including
// that.
std::optional<Node> extended_norm(const Producers& producers, const Node& node) {
  const std::string_view family = op_family(node.op);
  if (family == "aten._to_copy") {
    const Node* norm = producers.find(tensor_argument(node, "self"), kNorm);
    if (norm == nullptr || !producers.used_once(*norm) ||
        !kernels::is_real(producers.value(node.outputs.front()).dtype)) {
      return std::nullopt;
    }
    Node converted = *norm;
    converted.outputs = node.outputs;
    return converted;
  }
  const auto factors = family == "aten.mul" ? operands(node) : std::nullopt;
  if (!factors) return std::nullopt;
  for (const auto& [weight, product] :
       {std::pair(factors->self, factors->other), std::pair(factors->other, factors->self)}) {
    const Node* norm = producers.find(product, kNorm);
    if (norm == nullptr || !producers.used_once(*norm) || find_argument(*norm, "weight") != nullptr) continue;
    const Value& whole = producers.value(node.outputs.front());
    const Value& factor = producers.value(weight);
    if (factor.shape.size() != 1 || factor.shape[0] != whole.shape.back() || !kernels::is_real(factor.dtype)) continue;
    Node weighted = *norm;
    weighted.arguments["weight"] = ValueRef{weight};
    weighted.outputs = node.outputs;
    weighted.module = node.module;
    return weighted;
  }
  return std::nullopt;
}

}  // namespace

Graph fuse_rms_norm(Graph graph) {
  const Producers producers(graph);
  for (Node& node : graph.nodes) {
    std::optional<Node> norm = bare_norm(producers, node);
    if (!norm) norm = extended_norm(producers, node);
    if (norm) node = std::move(*norm);
  }
  return graph;
}

}  // namespace accord::engine
