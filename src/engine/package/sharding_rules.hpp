#pragma once
// The sharding plan of a package: rules by name pattern, applied to the graph's layers. docs/engine-format.md
// describes it.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/package/package.hpp"

namespace accord::engine {

/// Returns true if `pattern` matches all of `name`. Each * stands for any run of characters, dots included.
bool matches(std::string_view pattern, std::string_view name);

/// Returns true if the ranks of `group` each run their own rows of a batch: the group is kBatchGroup, and the package
/// divides nothing over it except experts.
bool is_batch_parallel(const Manifest& manifest, std::string_view group);

/// The decision of a layer about its weight or bias. Points into the graphs and the manifest.
struct RuleDecision {
  std::optional<Sharding> sharding;    ///< nullopt if the tensor is not divided
  const ShardingRule* rule = nullptr;  ///< null if no rule matches the layer
  const Node* layer = nullptr;
};

/// Applies the manifest's rules to the linear layers, embeddings and experts of the package's graphs. Returns the
/// decision for each tensor of such a layer, by the tensor's name. The first rule that matches a layer's module decides
/// it. A column rule divides weight and bias by outputs (dimension 0), a row rule divides the weight by inputs
/// (dimension 1). For the table of an embedding the dimensions are exchanged. Matrices of heads take column rules.
/// Experts are divided within each expert (row rule) or one by one (expert rule, dimension 0). Fails with kCorrupt if a
/// rule decides no layer, or if layers share a tensor but not its sharding.
Result<std::map<std::string, RuleDecision>> apply_rules(std::span<const Graph> graphs, const Manifest& manifest);

/// Compares the shardings of the manifest's tensors with what its rules give. Fails with kCorrupt, naming the tensor
/// and the rule that differ.
Status check_sharding(std::span<const Graph> graphs, const Manifest& manifest);

}  // namespace accord::engine
