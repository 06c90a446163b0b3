// All tables are joined into one map on first use.
#include "engine/ops/op_registry.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/text.hpp"
#include "engine/graph/node_access.hpp"

namespace accord::engine {
namespace {

const std::unordered_map<std::string_view, FoundOp>& registry() {
  using kernels::NarrowFloats;
  static const auto* const map = [] {
    auto* joined = new std::unordered_map<std::string_view, FoundOp>();
    const auto join = [&](std::span<const OpEntry> table, NarrowFloats narrow) {
      for (const OpEntry& entry : table) joined->emplace(entry.name, FoundOp{entry.prepare, narrow});
    };
    for (const auto table :
         {elementwise_ops(), logical_ops(), view_ops(), creation_ops(), index_ops(), collective_ops(), stage_ops(),
          matrix_ops(), norm_ops(), exchange_ops(), expert_ops(), image_ops()}) {
      join(table, NarrowFloats::kAsTheyAre);
    }
    for (const auto table : {reduction_ops(), softmax_ops(), attention_ops(), cached_attention_ops()}) {
      join(table, NarrowFloats::kAsFloat32);
    }
    return joined;
  }();
  return *map;
}

// Ops that only the CPU has are found too, since their outputs may be constants. Steps without a device kernel are
// rejected when a program is prepared. exchange_ops() is left out, because none of its ops has a device kernel.
const std::unordered_map<std::string_view, FoundOp>& device_registry() {
  static const auto* const map = [] {
    auto* changed = new std::unordered_map<std::string_view, FoundOp>(registry());
    for (const OpEntry& entry : exchange_ops()) changed->erase(entry.name);
    for (const auto table : {device_matrix_ops(), device_attention_ops(), device_expert_ops()}) {
      for (const OpEntry& entry : table) (*changed)[entry.name] = {entry.prepare, kernels::NarrowFloats::kAsTheyAre};
    }
    return changed;
  }();
  return *map;
}

}  // namespace

std::vector<std::string_view> op_names() {
  std::vector<std::string_view> names;
  for (const auto& entry : registry()) names.push_back(entry.first);
  std::sort(names.begin(), names.end());
  return names;
}

FoundOp find_op(std::string_view name, DeviceType type) {
  const auto& ops = type == DeviceType::kCpu ? registry() : device_registry();
  const auto found = ops.find(name);
  return found == ops.end() ? FoundOp() : found->second;
}

Status check_supported(const Graph& graph, DeviceType type) {
  for (const Node& node : graph.nodes) {
    if (find_op(node.op, type).prepare != nullptr) continue;
    if (find_op(node.op).prepare != nullptr) {
      return Status(StatusCode::kUnsupported, node_text(node) + ": this op has no kernel for GPUs");
    }
    std::string message = node_text(node) + ": this op has no kernel";
    if (const auto near = nearest_name(node.op, op_names()))
      message += "; the nearest that has one is \"" + std::string(*near) + "\"";
    return Status(StatusCode::kUnsupported, message);
  }
  return Status();
}

}  // namespace accord::engine
