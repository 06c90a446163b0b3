#include "engine/gpu/joined_weights.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "engine/gpu/parameters.hpp"
#include "engine/graph/node_access.hpp"

namespace accord::engine::gpu {
namespace {

/// Collects the places, node by node.
class Joining {
 public:
  explicit Joining(const Graph& graph) : graph_(graph), places_(graph.parameters.size()) {
    for (std::size_t i = 0; i < graph.parameters.size(); ++i) parameter_of_[graph.parameters[i].value] = i;
  }

  std::vector<std::optional<JoinedPlace>> places(const std::function<bool(std::size_t parameter)>& is_row_major) && {
    for (const Node& node : graph_.nodes) {
      const std::vector<std::size_t> weights = weights_of_node(node);
      const bool suit = std::all_of(weights.begin(), weights.end(), [&](std::size_t parameter) {
        return is_row_major(parameter) && suits(parameter, weights.front());
      });
      const std::set<std::size_t> different(weights.begin(), weights.end());
      if (weights.size() > 1 && suit && different.size() == weights.size()) join(weights);
    }
    return std::move(places_);
  }

 private:
  const Value& value_of(std::size_t parameter) const {
    return graph_.values[static_cast<std::size_t>(graph_.parameters[parameter].value)];
  }
  std::size_t bytes_of(std::size_t parameter) const {
    std::size_t bytes = size_of(value_of(parameter).dtype);
    for (const std::int64_t size : constant_sizes(value_of(parameter))) bytes *= static_cast<std::size_t>(size);
    return bytes;
  }

  // Empty if an operand is not a parameter.
  std::vector<std::size_t> weights_of_node(const Node& node) const {
    std::vector<ValueId> ids;
    if (node.op == "accord.gated_linear") {
      for (const char* const name : {"weight", "gate"}) ids.push_back(tensor_argument(node, name).value_or(-1));
    } else if (const Argument* const weights = node.op == "accord.linears" ? find_argument(node, "weights") : nullptr) {
      if (const auto* const refs = std::get_if<std::vector<ValueRef>>(weights))
        for (const ValueRef& ref : *refs) ids.push_back(ref.id);
    }
    std::vector<std::size_t> found;
    for (const ValueId id : ids) {
      const auto parameter = parameter_of_.find(id);
      if (parameter == parameter_of_.end()) return {};
      found.push_back(parameter->second);
    }
    return found;
  }

  // A weight begins at a multiple of what device memory begins at. Small weights are also on the CPU, one by one.
  bool suits(std::size_t parameter, std::size_t first) const {
    constexpr std::size_t kAligned = 256;
    const Value &value = value_of(parameter), &other = value_of(first);
    const std::vector<std::int64_t> sizes = constant_sizes(value);
    return !places_[parameter] && sizes.size() == 2 && value.dtype == other.dtype &&
           sizes.back() == constant_sizes(other).back() && bytes_of(parameter) % kAligned == 0 &&
           bytes_of(parameter) > kKnownBytes;
  }

  void join(const std::vector<std::size_t>& weights) {
    std::size_t all = 0;
    for (const std::size_t parameter : weights) {
      places_[parameter] = JoinedPlace{weights.front(), static_cast<std::int64_t>(all), 0};
      all += bytes_of(parameter);
    }
    for (const std::size_t parameter : weights) places_[parameter]->all_bytes = all;
  }

  const Graph& graph_;
  std::map<ValueId, std::size_t> parameter_of_;
  std::vector<std::optional<JoinedPlace>> places_;
};

}  // namespace

std::vector<std::optional<JoinedPlace>> joined_places(const Graph& graph,
                                                      const std::function<bool(std::size_t parameter)>& is_row_major) {
  return Joining(graph).places(is_row_major);
}

std::vector<std::int64_t> constant_sizes(const Value& value) {
  std::vector<std::int64_t> sizes;
  for (const SymbolicInt& size : value.shape) sizes.push_back(size.constant());
  return sizes;
}

}  // namespace accord::engine::gpu
