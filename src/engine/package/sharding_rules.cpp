// The layers are visited one by one. Each finds its rule by its module and records what the rule decides for its
// weight and bias, even if that is no sharding: a tensor that several layers share must get the same decision from all
// of them.
#include "engine/package/sharding_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/text.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"

namespace accord::engine {
namespace {

constexpr std::string_view kEmbedding = "aten.embedding.default";
constexpr std::string_view kExperts = "accord.experts.default";

bool can_have_rule(const Node& node) {
  return node.op == "aten.linear.default" || node.op == kAdaptedLinear || node.op == kEmbedding ||
         node.op == kExperts || node.op == kHeadLinear;
}

Status corrupt(const std::string& message) { return Status(StatusCode::kCorrupt, "manifest.json: " + message); }

std::string sharding_text(const std::optional<Sharding>& sharding) {
  if (!sharding) return "no sharding";
  return fmt::format("dimension {} in units of {}{}{} over group \"{}\"", sharding->dim, sharding->unit,
                     sharding->together > 1 ? fmt::format(", {} together", sharding->together) : "",
                     sharding->copies ? " with copies" : "", sharding->group);
}

using Decisions = std::map<std::string, RuleDecision>;

class Plan {
 public:
  Plan(std::span<const Graph> graphs, const Manifest& manifest)
      : graphs_(graphs), rules_(manifest.rules), used_(rules_.size()) {}

  Result<Decisions> apply() && {
    for (const Graph& graph : graphs_) {
      tensors_.clear();
      for (const Parameter& parameter : graph.parameters) tensors_[parameter.value] = parameter.tensor;
      for (const Node& node : graph.nodes) {
        if (can_have_rule(node)) ACCORD_RETURN_IF_ERROR(decide(node));
      }
    }
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (!used_[i]) return unused_rule(i);
    }
    return std::move(decisions_);
  }

 private:
  Status decide(const Node& layer) {
    const ShardingRule* rule = nullptr;
    for (std::size_t i = 0; i < rules_.size() && rule == nullptr; ++i) {
      if (!matches(rules_[i].pattern, layer.module)) continue;
      rule = &rules_[i];
      used_[i] = true;
    }
    if (layer.op == kExperts) return decide_experts(layer, rule);
    if (rule != nullptr && rule->style == ParallelStyle::kExpert) {
      return corrupt(fmt::format("rule \"{}\" is an expert rule, but \"{}\" is not a layer of experts", rule->pattern,
                                 layer.module));
    }
    RuleDecision weight{{}, rule, &layer};
    RuleDecision bias{{}, rule, &layer};
    if (rule != nullptr) {
      const bool column = rule->style == ParallelStyle::kColumn;
      if (layer.op == kHeadLinear && !column) {
        return corrupt(
            fmt::format("rule \"{}\" is a row rule, but \"{}\" has a matrix for each head, which takes a "
                        "column rule",
                        rule->pattern, layer.module));
      }
      const bool table = layer.op == kEmbedding;  // [ids, out]; the weight of a linear layer is [out, in]
      weight.sharding = Sharding{rule->group, column == table ? 1 : 0, rule->unit, rule->together, rule->copies};
      if (column && !table) bias.sharding = weight.sharding;
    }
    ACCORD_RETURN_IF_ERROR(record(tensor_argument(layer, "weight"), weight));
    ACCORD_RETURN_IF_ERROR(record(tensor_argument(layer, "bias"), bias));
    return layer.op == kAdaptedLinear ? decide_adapters(layer, weight) : Status();
  }

  // The adapters of a linear layer are [adapters, out, in], too. Each has two matrices: of the inputs, and of the
  // outputs.
  Status decide_adapters(const Node& layer, const RuleDecision& weight) {
    for (const auto& [name, dim] : {std::pair{"down", 1}, std::pair{"up", 0}}) {
      RuleDecision decision = weight;
      if (decision.sharding && decision.sharding->dim != dim) decision.sharding.reset();
      if (decision.sharding) ++decision.sharding->dim;
      ACCORD_RETURN_IF_ERROR(record(tensor_argument(layer, name), decision));
    }
    return Status();
  }

  // Weights are [experts, out, in]: divided within each expert, or expert by expert.
  Status decide_experts(const Node& layer, const ShardingRule* rule) {
    RuleDecision outputs{{}, rule, &layer};
    RuleDecision inputs{{}, rule, &layer};
    if (rule != nullptr) {
      if (rule->style == ParallelStyle::kColumn) {
        return corrupt(fmt::format(
            "rule \"{}\" is a column rule, but \"{}\" is a layer of experts, which takes an expert rule or a row rule",
            rule->pattern, layer.module));
      }
      const bool by_expert = rule->style == ParallelStyle::kExpert;
      outputs.sharding = Sharding{rule->group, by_expert ? 0 : 1, rule->unit, rule->together, rule->copies};
      inputs.sharding = Sharding{rule->group, by_expert ? 0 : 2, rule->unit, rule->together, rule->copies};
    }
    ACCORD_RETURN_IF_ERROR(record(tensor_argument(layer, "up"), outputs));
    ACCORD_RETURN_IF_ERROR(record(tensor_argument(layer, "gate"), outputs));
    return record(tensor_argument(layer, "down"), inputs);
  }

  Status record(std::optional<ValueId> value, const RuleDecision& decision) {
    const auto tensor = value ? tensors_.find(*value) : tensors_.end();
    if (tensor == tensors_.end()) return {};  // computed, not stored
    const auto [recorded, is_new] = decisions_.emplace(tensor->second, decision);
    if (is_new || recorded->second.sharding == decision.sharding) return {};
    return corrupt(
        fmt::format("tensor \"{}\" is shared by modules \"{}\" and \"{}\", to which the rules give {} and {}",
                    tensor->second, recorded->second.layer->module, decision.layer->module,
                    sharding_text(recorded->second.sharding), sharding_text(decision.sharding)));
  }

  Status unused_rule(std::size_t index) const {
    const std::string& pattern = rules_[index].pattern;
    const std::string rule = fmt::format("rule {} (\"{}\")", index, pattern);
    std::vector<std::string_view> modules;
    for (const Graph& graph : graphs_) {
      for (const Node& node : graph.nodes) {
        if (!can_have_rule(node)) continue;
        if (matches(pattern, node.module)) {
          return corrupt(
              fmt::format("{}: an earlier rule decides all that it matches, such as \"{}\"", rule, node.module));
        }
        modules.push_back(node.module);
      }
    }
    const auto near = nearest_name(pattern, modules);
    return corrupt(fmt::format("{} matches no linear layer, embedding or layer of experts{}", rule,
                               near ? fmt::format("; did you mean \"{}\"?", *near) : ""));
  }

  std::span<const Graph> graphs_;
  const std::vector<ShardingRule>& rules_;
  std::vector<bool> used_;
  std::map<ValueId, std::string> tensors_;  // of the current graph
  Decisions decisions_;
};

}  // namespace

bool is_batch_parallel(const Manifest& manifest, std::string_view group) {
  return group == kBatchGroup && std::none_of(manifest.rules.begin(), manifest.rules.end(), [&](const auto& rule) {
           return rule.group == group && rule.style != ParallelStyle::kExpert;
         });
}

// Greedy; backtracks to the last * after a mismatch.
bool matches(std::string_view pattern, std::string_view name) {
  std::size_t at = 0;
  std::size_t in_name = 0;
  std::optional<std::size_t> star;
  std::size_t taken = 0;  // where in `name` the run of the last * ends
  while (in_name < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = in_name;
    } else if (at < pattern.size() && pattern[at] == name[in_name]) {
      ++at;
      ++in_name;
    } else if (star) {
      at = *star + 1;
      in_name = ++taken;
    } else {
      return false;
    }
  }
  return pattern.substr(at).find_first_not_of('*') == std::string_view::npos;
}

Result<std::map<std::string, RuleDecision>> apply_rules(std::span<const Graph> graphs, const Manifest& manifest) {
  return Plan(graphs, manifest).apply();
}

Status check_sharding(std::span<const Graph> graphs, const Manifest& manifest) {
  ACCORD_ASSIGN_OR_RETURN(const Decisions decisions, apply_rules(graphs, manifest));
  for (const TensorEntry& tensor : manifest.tensors) {
    const auto found = decisions.find(tensor.name);
    const RuleDecision decision = found == decisions.end() ? RuleDecision() : found->second;
    if (tensor.sharding == decision.sharding) continue;
    const std::string given = decision.rule == nullptr
                                  ? "no rule divides it"
                                  : fmt::format("rule \"{}\" gives {} by module \"{}\"", decision.rule->pattern,
                                                sharding_text(decision.sharding), decision.layer->module);
    return corrupt(fmt::format("tensor \"{}\" has {}, but {}", tensor.name, sharding_text(tensor.sharding), given));
  }
  return {};
}

}  // namespace accord::engine
