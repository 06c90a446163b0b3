// Ranks cannot know how many rows will arrive. Memory is for the most that could: all rows of all ranks, each as often
// as it may choose experts of this rank.
#include "engine/partition/expert_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/graph/node_access.hpp"

namespace accord::engine {
namespace {

// Returns the value of `size` on the rank with the largest part of the batch, which may be one row larger than this
// rank's.
Result<SymbolicInt> size_in_largest_part(const SymbolicInt& size, const std::string& batch_symbol) {
  std::string text = "0";
  for (const SymbolicInt::Term& term : size.terms()) {
    text += fmt::format(" + {}", term.factor);
    for (const std::string& symbol : term.symbols) {
      const bool grows = symbol == batch_symbol;
      if (grows && term.factor < 0) {
        return Status(
            StatusCode::kUnsupported,
            fmt::format("the size {} decreases as the batch grows, which is not supported", size.to_string()));
      }
      text += grows ? fmt::format(" * ({} + 1)", symbol) : " * " + symbol;
    }
  }
  return SymbolicInt::parse(text);
}

}  // namespace

Status dispatch_and_combine(const Graph& whole, Node node, const ExchangedExperts& experts, Graph& local) {
  const ValueId input = *tensor_argument(node, "input");
  const ValueId ids = *tensor_argument(node, "experts");
  const SymbolicShape& rows_in = whole.values[static_cast<std::size_t>(input)].shape;
  const SymbolicShape& choices = whole.values[static_cast<std::size_t>(ids)].shape;
  const ValueId output = node.outputs.front();
  if (rows_in.size() != 2 || choices.size() != 2 || !choices[1].is_constant() ||
      rows_in[1] != whole.values[static_cast<std::size_t>(output)].shape.back()) {
    return Status(StatusCode::kUnsupported,
                  node_text(node) + ": rows that are sent to other ranks must return with the same width");
  }
  ACCORD_ASSIGN_OR_RETURN(const SymbolicInt tokens, size_in_largest_part(rows_in[0], experts.batch_symbol));
  ACCORD_ASSIGN_OR_RETURN(const SymbolicInt batch, SymbolicInt::parse(experts.batch_symbol));
  const std::int64_t rows_per_token = experts.ranks * std::min(choices[1].constant(), experts.mine);
  ACCORD_ASSIGN_OR_RETURN(const SymbolicInt capacity,
                          SymbolicInt::parse(fmt::format("({}) * {}", tokens.to_string(), rows_per_token)));
  const Value& given = whole.values[static_cast<std::size_t>(input)];
  const auto add = [&](const char* suffix, DType dtype, SymbolicShape shape) {
    local.values.push_back({given.name + suffix, dtype, std::move(shape)});
    return static_cast<ValueId>(local.values.size() - 1);
  };
  const ValueId rows = add(".dispatched", given.dtype, {capacity, rows_in[1]});
  const ValueId row_weights = add(".weights", DType::kFloat32, {capacity});
  const ValueId first = add(".experts", DType::kInt64, {experts.mine + 1});
  const ValueId made = add(".made", given.dtype, {capacity, rows_in[1]});
  const auto argument = [&node](const char* name) { return node.arguments.at(name); };
  local.nodes.push_back({"accord.dispatch",
                         {{"self", argument("input")},
                          {"experts", argument("experts")},
                          {"weights", argument("weights")},
                          {"group", experts.group},
                          {"experts_in_all", SymbolicInt(experts.in_all)},
                          {"batch", batch},
                          {"tokens_of_largest", tokens}},
                         {rows, row_weights, first},
                         node.module,
                         node.source});
  Node combine{"accord.combine",
               {{"self", ValueRef{made}},
                {"experts", argument("experts")},
                {"group", experts.group},
                {"experts_in_all", SymbolicInt(experts.in_all)}},
               {output},
               node.module,
               node.source};
  node.op = "accord.dispatched_experts";
  node.arguments["input"] = ValueRef{rows};
  node.arguments["weights"] = ValueRef{row_weights};
  node.arguments["experts"] = ValueRef{first};
  ACCORD_ASSIGN_OR_RETURN(node.arguments["expected_rows"],
                          SymbolicInt::parse(fmt::format("({}) * {}", rows_in[0].to_string(), choices[1].constant())));
  node.outputs = {made};
  local.nodes.push_back(std::move(node));
  local.nodes.push_back(std::move(combine));
  return Status();
}

}  // namespace accord::engine
