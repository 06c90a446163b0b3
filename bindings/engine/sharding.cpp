// The graph is parsed once. Each query partitions it for every rank of a group, as loading would, without any
// weights.
#include "bindings/engine/sharding.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/status.hpp"
#include "engine/graph/graph.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/passes/passes.hpp"

namespace accord::python {
namespace {

using Shape = std::vector<std::int64_t>;
using ShardingText = std::tuple<std::string, int, std::int64_t, std::int64_t, bool>;  // as engine::Sharding

class ShardingTrial {
 public:
  ShardingTrial(const std::string& graph, const std::map<std::string, Shape>& tensors)
      : graph_(value_or_raise(engine::parse_graph(graph))) {
    for (const auto& [name, shape] : tensors) {
      engine::TensorEntry entry;
      entry.name = name;
      entry.shape = shape;
      tensors_.push_back(std::move(entry));
    }
  }

  std::optional<std::string> problem(const std::map<std::string, ShardingText>& shardings, const std::string& group,
                                     int size) const {
    engine::Manifest manifest;
    manifest.groups = {group};
    manifest.tensors = tensors_;
    for (engine::TensorEntry& entry : manifest.tensors) {
      const auto found = shardings.find(entry.name);
      if (found == shardings.end()) continue;
      const auto& [name, dim, unit, together, copies] = found->second;
      entry.sharding = engine::Sharding{name, dim, unit, together, copies};
    }
    const WithoutGil without_gil;
    for (Rank rank = 0; rank < size; ++rank) {
      Result<engine::Partition> part = engine::partition(graph_, manifest, {{group, GroupPlace{rank, size}}});
      if (!part.ok()) return part.status().message();
      const Status status = engine::check_supported(engine::name_all_reduce(std::move(part->graph)));
      if (!status.ok()) return status.message();
    }
    return std::nullopt;
  }

 private:
  engine::Graph graph_;
  std::vector<engine::TensorEntry> tensors_;
};

}  // namespace

void bind_sharding(nb::module_& module) {
  nb::class_<ShardingTrial>(module, "ShardingTrial",
                            "A graph without its weights, used to find out whether ranks can share it. For "
                            "accord.export().")
      .def(nb::init<const std::string&, const std::map<std::string, Shape>&>(), nb::arg("graph"), nb::arg("tensors"),
           "graph: in the format of graph.json. tensors: name -> shape.")
      .def("problem", &ShardingTrial::problem, nb::arg("shardings"), nb::arg("group"), nb::arg("size"),
           "Returns the reason why the ranks of a group cannot share the graph; None if they can. shardings: tensor "
           "-> (group, dim, unit, together, copies).");
}

}  // namespace accord::python
