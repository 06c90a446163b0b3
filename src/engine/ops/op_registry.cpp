// All tables are joined into one map on first use.
#include "engine/ops/op_registry.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/text.hpp"
#include "engine/graph/node_access.hpp"

namespace accord::engine {
namespace {

enum class SeesNarrowFloats : std::uint8_t { kUnchanged, kAsFloat32, kAsItsStepsDo };

struct KnownOp {
  PrepareFunction prepare = nullptr;
  SeesNarrowFloats narrow = SeesNarrowFloats::kAsFloat32;
};

const std::unordered_map<std::string_view, KnownOp>& registry() {
  static const auto* const map = [] {
    auto* joined = new std::unordered_map<std::string_view, KnownOp>();
    const auto join = [&](std::initializer_list<std::span<const OpEntry>> tables, SeesNarrowFloats narrow) {
      for (const auto table : tables) {
        for (const OpEntry& entry : table) joined->emplace(entry.name, KnownOp{entry.prepare, narrow});
      }
    };
    join({elementwise_ops(), logical_ops(), view_ops(), creation_ops(), index_ops(), collective_ops(), stage_ops(),
          matrix_ops(), norm_ops(), exchange_ops(), expert_ops(), image_ops()},
         SeesNarrowFloats::kUnchanged);
    join({attention_ops(), cached_attention_ops()}, SeesNarrowFloats::kAsItsStepsDo);
    join({reduction_ops(), softmax_ops(), recurrence_ops()}, SeesNarrowFloats::kAsFloat32);
    return joined;
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

FoundOp find_op(std::string_view name, const StepTable& steps) {
  const auto found = registry().find(name);
  if (found == registry().end()) return FoundOp();
  const auto& [prepare, narrow] = found->second;
  const bool as_they_are = narrow == SeesNarrowFloats::kUnchanged ||
                           (narrow == SeesNarrowFloats::kAsItsStepsDo && steps.keeps_narrow_floats());
  return {prepare, as_they_are ? kernels::NarrowFloats::kUnchanged : kernels::NarrowFloats::kAsFloat32};
}

Status check_supported(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (registry().count(node.op) > 0) continue;
    std::string message = node_text(node) + ": this op has no kernel";
    if (const auto near = nearest_name(node.op, op_names()))
      message += "; the nearest that has one is \"" + std::string(*near) + "\"";
    return Status(StatusCode::kUnsupported, message);
  }
  return Status();
}

}  // namespace accord::engine
