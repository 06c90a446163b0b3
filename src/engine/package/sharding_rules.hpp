#pragma once
// The sharding plan of a package: rules by name pattern, applied to the graph's layers. docs/engine-format.md writes it down.

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/package/package.hpp"

namespace accord::engine {

/// Whether `pattern`, in which each * stands for any run of characters (dots too), is all of `name`.
bool matches(std::string_view pattern, std::string_view name);

/// Whether the ranks of `group` run other rows than each other: it is kBatchGroup, of which the package divides nothing, or experts alone.
bool divides_batch(const Manifest& manifest, std::string_view group);

/// What a linear layer gives its weight or bias. Points into the graph and the manifest.
struct RuleDecision {
  std::optional<Sharding> sharding;    ///< none if the tensor is not divided
  const ShardingRule* rule = nullptr;  ///< none if no rule matches the layer
  const Node* layer = nullptr;
};

/// Applies the manifest's rules to the linear layers of `graph`: what they give each tensor of such a layer, by the tensor's name.
/// The first rule that matches a layer's module decides it: column divides weight and bias by outputs (dimension 0), row
/// the weight by inputs (dimension 1); experts are divided within each expert by rows, or one by one (dimension 0). kCorrupt if a rule decides no layer, or layers share a tensor but not its sharding.
Result<std::map<std::string, RuleDecision>> apply_rules(const Graph& graph, const Manifest& manifest);

/// Holds the manifest's tensors against what its rules give: kCorrupt names the tensor and the rule that differ.
Status check_sharding(const Graph& graph, const Manifest& manifest);

}  // namespace accord::engine
