// Chooses the last node of each stage, then assembles the graph of one stage: receive, the stage's nodes, send, and
// broadcasts.
#include "engine/partition/stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"

namespace accord::engine {
namespace {

constexpr int kEveryStage = -1;  // nodes and values that depend on the inputs alone

std::size_t at(ValueId id) { return static_cast<std::size_t>(id); }

class Stages {
 public:
  Stages(Graph graph, const Graph& whole, const std::string& group, const GroupPlace& place)
      : graph_(std::move(graph)), group_(group), place_(place), stage_of_value_(graph_.values.size(), kEveryStage) {
    for (const Parameter& parameter : whole.parameters)
      tensor_bytes_[parameter.tensor] = bytes_of(whole.values[at(parameter.value)]);
  }

  Result<Graph> run() {
    find_costs();
    ACCORD_RETURN_IF_ERROR(choose_ends());
    assign();
    return cut();
  }

 private:
  static std::uint64_t bytes_of(const Value& value) {
    std::uint64_t bytes = size_of(value.dtype);
    for (const SymbolicInt& size : value.shape)
      bytes *= static_cast<std::uint64_t>(size.is_constant() ? size.constant() : 1);
    return bytes;
  }

  // Finds the nodes that belong to a stage, and the bytes of weights that each node adds: those of weights that no
  // earlier node reads. Bytes are counted for whole tensors, because ranks that divide them unevenly must find the
  // same stages.
  void find_costs() {
    std::vector<bool> is_weight(graph_.values.size()), counted(graph_.values.size()), depends(graph_.values.size());
    std::vector<std::uint64_t> weight_bytes(graph_.values.size());
    for (const Parameter& parameter : graph_.parameters) {
      is_weight[at(parameter.value)] = depends[at(parameter.value)] = true;
      weight_bytes[at(parameter.value)] = tensor_bytes_.at(parameter.tensor);
    }
    for (const Node& node : graph_.nodes) {
      bool staged = node.op.starts_with("accord.");
      std::uint64_t bytes = 0;
      for_each_input(node, [&](ValueId id) {
        staged = staged || depends[at(id)];
        if (!is_weight[at(id)] || counted[at(id)]) return;
        counted[at(id)] = true;
        bytes += weight_bytes[at(id)];
      });
      staged_.push_back(staged);
      costs_.push_back(bytes);
      for (const ValueId output : node.outputs) depends[at(output)] = staged;
    }
  }

  // Returns, for each node, the number of values that are produced up to that node and read after it. Does not count
  // weights and values that every stage computes.
  std::vector<int> crossings() const {
    std::vector<int> produced_at(graph_.values.size(), -1), last_use(graph_.values.size(), -1);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      for_each_input(graph_.nodes[i], [&](ValueId id) { last_use[at(id)] = static_cast<int>(i); });
      if (!staged_[i]) continue;
      for (const ValueId output : graph_.nodes[i].outputs) produced_at[at(output)] = static_cast<int>(i);
    }
    std::vector<int> count(graph_.nodes.size() + 1, 0);
    for (std::size_t id = 0; id < produced_at.size(); ++id) {
      if (produced_at[id] < 0 || last_use[id] <= produced_at[id]) continue;
      ++count[static_cast<std::size_t>(produced_at[id])];
      --count[static_cast<std::size_t>(last_use[id])];
    }
    for (std::size_t i = 1; i < count.size(); ++i) count[i] += count[i - 1];
    return count;
  }

  // Chooses the last node of each stage except the last: where few values cross and the weights are divided about
  // equally.
  Status choose_ends() {
    const auto nodes = static_cast<std::int64_t>(graph_.nodes.size());
    const std::vector<int> crossing = crossings();
    std::uint64_t total = 0;
    for (const std::uint64_t bytes : costs_) total += bytes;
    const auto share = static_cast<double>(total) / place_.size;
    // Weights up to and including each node, and ops with a cache before it.
    std::vector<double> before;
    std::vector<int> cached = {0};
    double bytes = 0;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      bytes += static_cast<double>(costs_[i]);
      before.push_back(bytes);
      cached.push_back(cached.back() + (uses_cache(graph_.nodes[i].op) ? 1 : 0));
    }
    const bool has_cache = cached.back() > 0;
    if (has_cache && cached.back() < place_.size) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("group \"{}\" has {} ranks, but the model has {} layers with a cache: use at most as "
                                "many stages",
                                group_, place_.size, cached.back()));
    }
    std::int64_t begin = 0;
    for (int stage = 0; stage + 1 < place_.size; ++stage) {
      const int later = place_.size - 1 - stage;
      std::int64_t best = -1;
      double best_score = std::numeric_limits<double>::max();
      for (std::int64_t i = begin; i < nodes - later; ++i) {
        const auto index = static_cast<std::size_t>(i);
        if (!staged_[index]) continue;
        if (has_cache && (cached[index + 1] == cached[static_cast<std::size_t>(begin)] ||
                          cached.back() - cached[index + 1] < later)) {
          continue;
        }
        // Each crossing value weighs as much as a tenth of a share.
        const double off =
            share > 0 ? std::abs(before[index] / share - (stage + 1))
                      : std::abs(static_cast<double>(i + 1) * place_.size / static_cast<double>(nodes) - (stage + 1));
        const double score = off + 0.1 * crossing[index];
        if (score < best_score) {
          best_score = score;
          best = i;
        }
      }
      if (best < 0) {
        return Status(
            StatusCode::kInvalidArgument,
            fmt::format("group \"{}\" has {} ranks, but the model of {} ops cannot be cut into as many stages", group_,
                        place_.size, nodes));
      }
      ends_.push_back(best);
      begin = best + 1;
    }
    return Status();
  }

  int stage_of_node(std::size_t index) const {
    if (!staged_[index]) return kEveryStage;
    return static_cast<int>(std::lower_bound(ends_.begin(), ends_.end(), static_cast<std::int64_t>(index)) -
                            ends_.begin());
  }

  void assign() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (const ValueId output : graph_.nodes[i].outputs) stage_of_value_[at(output)] = stage_of_node(i);
    }
  }

  // Returns the values that are produced in stages up to `stage` and read after it, ordered by id.
  std::vector<ValueRef> crossing(int stage) const {
    std::vector<bool> crosses(graph_.values.size(), false);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (stage_of_node(i) <= stage) continue;
      for_each_input(graph_.nodes[i], [&](ValueId id) {
        if (stage_of_value_[at(id)] != kEveryStage && stage_of_value_[at(id)] <= stage) crosses[at(id)] = true;
      });
    }
    std::vector<ValueRef> found;
    for (std::size_t id = 0; id < crosses.size(); ++id) {
      if (crosses[id]) found.push_back({static_cast<ValueId>(id)});
    }
    return found;
  }

  ValueId add_value(Value value) {
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size() - 1);
  }

  Graph cut() {
    const std::vector<ValueRef> received = place_.rank > 0 ? crossing(place_.rank - 1) : std::vector<ValueRef>();
    const std::vector<ValueRef> sent = place_.rank + 1 < place_.size ? crossing(place_.rank) : std::vector<ValueRef>();
    std::vector<Node> nodes;
    if (!received.empty()) {
      Node node{"accord.recv", {{"group", group_}, {"from", SymbolicInt(place_.rank - 1)}}, {}, "", ""};
      for (const ValueRef value : received) node.outputs.push_back(value.id);
      nodes.push_back(std::move(node));
    }
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const int stage = stage_of_node(i);
      if (stage == kEveryStage || stage == place_.rank) nodes.push_back(std::move(graph_.nodes[i]));
    }
    Argument after = None{};
    if (!sent.empty()) {
      const ValueId token = add_value({"stage.sent", DType::kBool, {}});
      nodes.push_back({"accord.send",
                       {{"group", group_}, {"to", SymbolicInt(place_.rank + 1)}, {"values", sent}},
                       {token},
                       "",
                       ""});
      after = ValueRef{token};
    }
    for (ValueId& output : graph_.outputs) {
      const int stage = stage_of_value_[at(output)];
      if (stage == kEveryStage) continue;
      Value shared = graph_.values[at(output)];
      shared.name += ".shared";
      const ValueId everywhere = add_value(std::move(shared));
      Node node{"accord.broadcast",
                {{"group", group_}, {"root", SymbolicInt(stage)}, {"after", after}},
                {everywhere},
                "",
                ""};
      if (stage == place_.rank) node.arguments["self"] = ValueRef{output};
      nodes.push_back(std::move(node));
      output = everywhere;
    }
    graph_.nodes = std::move(nodes);
    return std::move(graph_);
  }

  Graph graph_;
  const std::string& group_;
  const GroupPlace place_;
  std::map<std::string, std::uint64_t> tensor_bytes_;
  std::vector<bool> staged_;          // indexed by node
  std::vector<std::uint64_t> costs_;  // indexed by node
  std::vector<std::int64_t> ends_;    // the last node of each stage except the last
  std::vector<int> stage_of_value_;   // the stage that produces each value
};

}  // namespace

Result<Graph> cut_stage(Graph graph, const Graph& whole, const std::string& group, const GroupPlace& place) {
  return Stages(std::move(graph), whole, group, place).run();
}

}  // namespace accord::engine
