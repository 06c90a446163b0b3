#include "engine/report/node_work.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "engine/graph/node_access.hpp"

namespace accord::engine {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::string_view kMoves[] = {
    "aten.cat",    "aten.index",   "aten.index_select", "aten.gather",       "aten.slice",      "aten.select",
    "aten.expand", "aten.permute", "aten._to_copy",     "aten.view",         "aten.embedding",  "accord.embedding",
    "aten.full",   "aten.arange",  "accord.all_reduce", "accord.all_gather", "accord.dispatch", "accord.combine"};

class Counter {
 public:
  Counter(const Graph& graph, const Node& node, const SymbolValues& symbols, const StoredBytes& stored)
      : graph_(graph), node_(node), symbols_(symbols), stored_(stored), family_(op_family(node.op)) {}

  Result<NodeWork> count() {
    std::set<ValueId> parameters;
    for (const Parameter& parameter : graph_.parameters) parameters.insert(parameter.value);
    std::set<ValueId> inputs;
    for_each_input(node_, [&](ValueId id) { inputs.insert(id); });
    std::uint64_t max_elements = 0;
    for (const ValueId id : inputs) {
      ACCORD_ASSIGN_OR_RETURN(std::uint64_t elements, elements_of(id));
      if (is_table(id)) {
        ACCORD_ASSIGN_OR_RETURN(elements, elements_of(node_.outputs.front()));
      }
      add(id, elements, parameters.contains(id));
      max_elements = std::max(max_elements, elements);
    }
    for (const ValueId id : node_.outputs) {
      ACCORD_ASSIGN_OR_RETURN(const std::uint64_t elements, elements_of(id));
      add(id, elements, false);
      max_elements = std::max(max_elements, elements);
    }
    ACCORD_ASSIGN_OR_RETURN(work_.flops, flops(max_elements));
    return work_;
  }

 private:
  void add(ValueId id, std::uint64_t elements, bool is_parameter) {
    const auto stored = stored_.find(id);
    const std::uint64_t bytes = stored != stored_.end() && !is_table(id)
                                    ? stored->second
                                    : elements * size_of(graph_.values[static_cast<std::size_t>(id)].dtype);
    work_.bytes += bytes;
    if (is_parameter) work_.weight_bytes += bytes;
  }

  bool is_table(ValueId id) const { return family_.ends_with(".embedding") && tensor_argument(node_, "weight") == id; }

  Result<Sizes> sizes_of(ValueId id) const {
    Sizes sizes;
    for (const SymbolicInt& size : graph_.values[static_cast<std::size_t>(id)].shape) {
      ACCORD_ASSIGN_OR_RETURN(sizes.emplace_back(), size.evaluate(symbols_));
    }
    return sizes;
  }

  static std::uint64_t product(const Sizes& sizes) {
    std::uint64_t elements = 1;
    for (const std::int64_t size : sizes) elements *= static_cast<std::uint64_t>(size);
    return elements;
  }

  Result<std::uint64_t> elements_of(ValueId id) const {
    ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, sizes_of(id));
    return product(sizes);
  }

  Result<std::uint64_t> last_size(std::string_view argument) const {
    const auto id = tensor_argument(node_, argument);
    if (!id) return std::uint64_t{0};
    ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, sizes_of(*id));
    return sizes.empty() ? std::uint64_t{1} : static_cast<std::uint64_t>(sizes.back());
  }

  Result<std::uint64_t> flops(std::uint64_t max_elements) const {
    if (std::find(std::begin(kMoves), std::end(kMoves), family_) != std::end(kMoves)) return std::uint64_t{0};
    ACCORD_ASSIGN_OR_RETURN(const std::uint64_t output_elements, elements_of(node_.outputs.front()));
    for (const auto& [family, argument] : {std::pair<std::string_view, std::string_view>{"aten.linear", "input"},
                                           {"accord.linear", "input"},
                                           {"accord.gated_linear", "input"},
                                           {"accord.linears", "input"},
                                           {"accord.head_linear", "input"},
                                           {"aten.mm", "self"},
                                           {"aten.bmm", "self"},
                                           {"aten.addmm", "mat1"}}) {
      if (family_ != family) continue;
      ACCORD_ASSIGN_OR_RETURN(const std::uint64_t depth, last_size(argument));
      std::uint64_t all = 0;  // elements of all outputs
      for (const ValueId output : node_.outputs) {
        ACCORD_ASSIGN_OR_RETURN(const std::uint64_t elements, elements_of(output));
        all += elements;
      }
      return (tensor_argument(node_, "gate") ? 4 : 2) * all * depth;
    }
    if (family_ == "aten.convolution") return convolution(output_elements);
    if (family_ == "accord.experts" || family_ == "accord.dispatched_experts") return experts();
    if (family_ == "accord.adapters") return adapters();
    if (tensor_argument(node_, "query") && tensor_argument(node_, "key")) return attention(output_elements);
    return max_elements;
  }

  Result<std::uint64_t> convolution(std::uint64_t output_elements) const {
    ACCORD_ASSIGN_OR_RETURN(const Sizes weight, sizes_of(*tensor_argument(node_, "weight")));
    return 2 * output_elements * product(weight) /
           static_cast<std::uint64_t>(std::max<std::int64_t>(weight.front(), 1));
  }

  // Each row passes through the matrices of as many experts as it chose. If ranks share the experts, each rank has its
  // part of the choices.
  // Two products for each row, as if each had an adapter.
  Result<std::uint64_t> adapters() const {
    ACCORD_ASSIGN_OR_RETURN(const std::uint64_t rows, elements_of(*tensor_argument(node_, "adapters")));
    ACCORD_ASSIGN_OR_RETURN(const std::uint64_t in, last_size("down"));
    ACCORD_ASSIGN_OR_RETURN(const std::uint64_t rank, last_size("up"));
    ACCORD_ASSIGN_OR_RETURN(const std::uint64_t out, last_size("base"));
    return 2 * rows * rank * (in + out);
  }

  Result<std::uint64_t> experts() const {
    std::uint64_t choices = 0;
    if (const Argument* const expected = find_argument(node_, "expected_rows")) {
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t rows, std::get<SymbolicInt>(*expected).evaluate(symbols_));
      choices = static_cast<std::uint64_t>(rows);
    } else {
      ACCORD_ASSIGN_OR_RETURN(choices, elements_of(*tensor_argument(node_, "experts")));
    }
    std::uint64_t per_choice = 0;
    for (const std::string_view matrix : {"gate", "up", "down"}) {
      const auto id = tensor_argument(node_, matrix);
      if (!id) continue;
      ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, sizes_of(*id));
      per_choice += product(sizes) / static_cast<std::uint64_t>(std::max<std::int64_t>(sizes.front(), 1));
      if (const Argument* const total = find_argument(node_, "experts_in_all"); total != nullptr && matrix == "up") {
        choices = choices * static_cast<std::uint64_t>(sizes.front()) /
                  static_cast<std::uint64_t>(std::get<SymbolicInt>(*total).constant());
      }
    }
    return 2 * choices * per_choice;
  }

  // Two products for each pair of a query and a key that it sees.
  Result<std::uint64_t> attention(std::uint64_t output_elements) const {
    ACCORD_ASSIGN_OR_RETURN(const Sizes query, sizes_of(*tensor_argument(node_, "query")));
    ACCORD_ASSIGN_OR_RETURN(const Sizes key, sizes_of(*tensor_argument(node_, "key")));
    if (query.size() < 2 || key.size() < 2) return std::uint64_t{0};
    const auto keys = static_cast<std::uint64_t>(key[key.size() - 2]);
    ACCORD_ASSIGN_OR_RETURN(const bool causal, flag_argument(node_, "is_causal", family_ == "accord.attention"));
    return 2 * (product(query) + output_elements) * (causal ? (keys + 1) / 2 : keys);
  }

  const Graph& graph_;
  const Node& node_;
  const SymbolValues& symbols_;
  const StoredBytes& stored_;
  const std::string_view family_;
  NodeWork work_;
};

}  // namespace

Result<NodeWork> work_of(const Graph& graph, const Node& node, const SymbolValues& symbols, const StoredBytes& stored) {
  return Counter(graph, node, symbols, stored).count();
}

}  // namespace accord::engine
