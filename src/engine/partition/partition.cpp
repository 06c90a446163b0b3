// One pass over the graph in its order. Each weight starts with the shard that the manifest gives it. The rule of each
// node's op determines the shards of its outputs, and the node's literal sizes (12 heads) are replaced by local ones.
// If the rule yields partial sums, an all_reduce and the bias are added after the node. Finally all shapes become
// local.
#include "engine/partition/partition.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"
#include "engine/package/sharding_rules.hpp"
#include "engine/partition/carry.hpp"
#include "engine/partition/expert_exchange.hpp"

namespace accord::engine {
namespace {

class Partitioner {
 public:
  Partitioner(const Graph& whole, const Manifest& manifest, const std::map<std::string, GroupPlace>& places,
              int canonical_ranks, const std::string& batch_symbol)
      : whole_(whole),
        manifest_(manifest),
        tensors_(tensors_by_name(manifest)),
        places_(places),
        canonical_ranks_(canonical_ranks),
        batch_symbol_(batch_symbol),
        shards_(whole.values.size()) {
    result_.graph = whole;
    result_.graph.nodes.clear();
  }

  Result<Partition> run() {
    ACCORD_RETURN_IF_ERROR(check_places());
    for (const Parameter& parameter : whole_.parameters) ACCORD_RETURN_IF_ERROR(place_parameter(parameter));
    for (const Node& node : whole_.nodes) ACCORD_RETURN_IF_ERROR(place_node(node));
    for (ValueId& output : result_.graph.outputs) ACCORD_RETURN_IF_ERROR(gather_output(output));
    for (std::size_t id = 0; id < whole_.values.size(); ++id) {
      Value& value = result_.graph.values[id];
      if (const OptionalShard& shard = shards_[id]) {
        const std::size_t dim = static_cast<std::size_t>(shard->dim);
        value.shape[dim] = local_extent(*shard, value.shape[dim].constant(), place(shard->group)).count;
      }
    }
    result_.shards = std::move(shards_);
    return std::move(result_);
  }

 private:
  const GroupPlace& place(const std::string& group) const {
    static const GroupPlace alone;
    const auto found = places_.find(group);
    return found == places_.end() ? alone : found->second;
  }

  Status check_places() const {
    for (const auto& [group, place] : places_) {
      if (std::find(manifest_.groups.begin(), manifest_.groups.end(), group) == manifest_.groups.end()) {
        const std::vector<std::string_view> names(manifest_.groups.begin(), manifest_.groups.end());
        return unknown_name("group", group, names);
      }
      ACCORD_RETURN_IF_ERROR(check_place(group, place));
      if (canonical() && canonical_ranks_ % place.size != 0 && !is_batch_parallel(manifest_, group)) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("group \"{}\" has {} ranks, which does not divide canonical_ranks = {}", group,
                                  place.size, canonical_ranks_));
      }
    }
    return Status();
  }

  Status place_parameter(const Parameter& parameter) {
    const TensorEntry& entry = *tensors_.at(parameter.tensor);
    TensorPart part{parameter.tensor, entry.shape, 0, entry.granule_xxh3.size(), entry.sharding.has_value()};
    if (entry.sharding) ACCORD_RETURN_IF_ERROR(divide(entry, parameter.value, part));
    result_.parts.push_back(std::move(part));
    return Status();
  }

  // Gives the tensor its shard and this rank's granules. Does nothing if its group has one rank; in canonical mode
  // this applies only to experts that are divided one by one.
  Status divide(const TensorEntry& entry, ValueId value, TensorPart& part) {
    const Sharding& sharding = *entry.sharding;
    const GroupPlace& here = place(sharding.group);
    if (here.size == 1 && (!canonical() || is_of_experts(sharding, entry, value))) return Status();
    const std::int64_t size = entry.shape[static_cast<std::size_t>(sharding.dim)];
    const Shard shard{sharding.group, sharding.dim, sharding.unit, entry.units(), sharding.together, sharding.copies};
    const auto units = units_of_rank(sharding, shard.units, here.rank, here.size);
    if (!units) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("tensor \"{}\" ({} elements along dimension {}) has {} unit{} of {} to share, but group \"{}\" "
                      "has {} ranks; use at most {} ranks or export with a smaller unit",
                      entry.name, size, sharding.dim, shard.units, shard.units == 1 ? "" : "s", sharding.unit,
                      sharding.group, here.size, shard.units));
    }
    part.shape[static_cast<std::size_t>(shard.dim)] = local_extent(shard, size, here).count;
    part.first_granule = static_cast<std::uint64_t>(units->first);
    part.granules = static_cast<std::uint64_t>(units->count);
    shards_[static_cast<std::size_t>(value)] = shard;
    return Status();
  }

  Status place_node(Node node) {
    bool sharded = false;
    for_each_input(std::as_const(node),
                   [&](ValueId id) { sharded = sharded || shards_[static_cast<std::size_t>(id)]; });
    if (!sharded || node.outputs.empty()) {
      result_.graph.nodes.push_back(std::move(node));
      return Status();
    }
    const ShardQuery query{whole_, node, shards_};
    const CarryFunction rule = carry_rule(node.op);
    if (rule == nullptr) return query.unsupported("no rule is known for this op");
    ACCORD_ASSIGN_OR_RETURN(const ShardResult result, rule(query));
    for (const UsedPart& part : result.used_parts) ACCORD_RETURN_IF_ERROR(use_part(query, node, part));
    if (result.experts_over) return spread_experts(std::move(node), *result.experts_over);
    if (result.partial_over) return reduce_after(std::move(node), *result.partial_over);
    for (const ValueId output : node.outputs) {
      ACCORD_RETURN_IF_ERROR(check_carried(query, output, result.output));
      shards_[static_cast<std::size_t>(output)] = result.output;
    }
    // view and expand have literal sizes.
    const auto sizes = node.arguments.find("size");
    if (sizes != node.arguments.end() && result.output) sizes->second = local_shape(node.outputs.front());
    result_.graph.nodes.push_back(std::move(node));
    return Status();
  }

  // Puts this rank's part of a whole input in its place.
  Status use_part(const ShardQuery& query, Node& node, const UsedPart& used) {
    const Value& whole = whole_.values[static_cast<std::size_t>(used.input)];
    const SymbolicInt& size = whole.shape[static_cast<std::size_t>(used.shard.dim)];
    if (!size.is_constant() || (size.constant() + used.shard.unit - 1) / used.shard.unit != used.shard.units) {
      return query.unsupported(fmt::format("one input has {}, but \"{}\" has {} elements", shard_text(used.shard),
                                           whole.name, size.to_string()));
    }
    const Extent mine = local_extent(used.shard, size.constant(), place(used.shard.group));
    const ValueId part = add_value(used.input, fmt::format(".part{}", result_.graph.nodes.size()));
    result_.graph.values[static_cast<std::size_t>(part)].shape[static_cast<std::size_t>(used.shard.dim)] = mine.count;
    result_.graph.nodes.push_back({"aten.slice.Tensor",
                                   {{"self", ValueRef{used.input}},
                                    {"dim", SymbolicInt(used.shard.dim)},
                                    {"start", SymbolicInt(mine.first)},
                                    {"end", SymbolicInt(mine.first + mine.count)}},
                                   {part},
                                   node.module,
                                   node.source});
    for_each_input(node, [&](ValueId& id) {
      if (id == used.input) id = part;
    });
    return Status();
  }

  // Guards against a rule that is wrong about the divided dimension: returns an error instead of wrong shapes.
  Status check_carried(const ShardQuery& query, ValueId output, const OptionalShard& shard) const {
    if (!shard) return Status();
    const SymbolicShape& shape = query.value(output).shape;
    if (shard->dim < 0 || shard->dim >= static_cast<int>(shape.size()) ||
        !shape[static_cast<std::size_t>(shard->dim)].is_constant()) {
      return query.unsupported("its output has no constant dimension that is cut like its input");
    }
    const std::int64_t size = shape[static_cast<std::size_t>(shard->dim)].constant();
    if ((size + shard->unit - 1) / shard->unit != shard->units) {
      return query.unsupported(
          fmt::format("its output has {} elements where {} are expected", size, shard_text(*shard)));
    }
    return Status();
  }

  bool is_of_experts(const Sharding& sharding, const TensorEntry& entry, ValueId value) const {
    if (entry.shape.size() != 3 || sharding.dim != 0) return false;
    return std::none_of(whole_.nodes.begin(), whole_.nodes.end(), [&](const Node& node) {
      return node.op == kHeadLinear && tensor_argument(node, "weight") == value;
    });
  }

  // Ranks with the same rows each run all rows through their own experts, and the results are added up. Ranks that
  // divide a batch have different rows, which are sent to the ranks whose experts they chose.
  Status spread_experts(Node node, const std::string& group) {
    const ValueId up = *tensor_argument(node, "up");
    const Shard& shard = *shards_[static_cast<std::size_t>(up)];
    const std::int64_t experts = whole_.values[static_cast<std::size_t>(up)].shape.front().constant();
    const Extent mine = local_extent(shard, experts, place(group));
    if (is_batch_parallel(manifest_, group)) {
      const ExchangedExperts exchanged{group, place(group).size, experts, mine.count, batch_symbol_};
      return dispatch_and_combine(whole_, std::move(node), exchanged, result_.graph);
    }
    node.op = "accord.experts";
    node.arguments["first_expert"] = SymbolicInt(mine.first);
    node.arguments["experts_in_all"] = SymbolicInt(experts);
    return reduce_after(std::move(node), group);
  }

  std::vector<SymbolicInt> local_shape(ValueId id) const {
    SymbolicShape shape = whole_.values[static_cast<std::size_t>(id)].shape;
    const Shard& shard = *shards_[static_cast<std::size_t>(id)];
    SymbolicInt& size = shape[static_cast<std::size_t>(shard.dim)];
    size = local_extent(shard, size.constant(), place(shard.group)).count;
    return shape;
  }

  // product -> all_reduce -> + bias, so that the bias is added once.
  Status reduce_after(Node node, const std::string& group) {
    const ValueId output = node.outputs.front();
    const bool addmm = op_family(node.op) == "aten.addmm";
    if (op_family(node.op) == "aten.embedding") restrict_to_own_rows(node);
    const std::string bias_name = addmm ? "self" : "bias";
    const auto bias = tensor_argument(node, bias_name);
    node.arguments.erase(bias_name);
    if (addmm) {
      ACCORD_RETURN_IF_ERROR(check_plain_addmm(node));
      node.op = "aten.mm.default";
      node.arguments["self"] = node.arguments["mat1"];
      node.arguments.erase("mat1");
    }
    const DType dtype = whole_.values[static_cast<std::size_t>(output)].dtype;
    // Each row of a table is on one rank only, so its sum over the ranks is exact anyway.
    const bool product = op_family(node.op) != "accord.embedding";
    if (canonical() && product) ACCORD_RETURN_IF_ERROR(divide_inputs(node));
    const bool rounds = canonical() && product && dtype != DType::kFloat32;
    const ValueId partial = add_value(output, ".partial");
    const ValueId reduced = bias || rounds ? add_value(output, ".reduced") : output;
    const ValueId rounded = !rounds ? reduced : bias ? add_value(output, ".rounded") : output;
    if (rounds) {
      for (const ValueId sum : {partial, reduced})
        result_.graph.values[static_cast<std::size_t>(sum)].dtype = DType::kFloat32;
    }
    node.outputs = {partial};
    const std::string module = node.module;
    const std::string source = node.source;
    result_.graph.nodes.push_back(std::move(node));
    Node sum{"accord.all_reduce", {{"self", ValueRef{partial}}, {"group", group}}, {reduced}, module, source};
    sum.arguments["op"] = std::string("sum");
    if (!product) sum.arguments["exact"] = true;
    result_.graph.nodes.push_back(std::move(sum));
    if (rounds) {
      result_.graph.nodes.push_back(
          Node{"aten._to_copy.default", {{"self", ValueRef{reduced}}, {"dtype", dtype}}, {rounded}, module, source});
    }
    if (bias) {
      result_.graph.nodes.push_back(
          Node{"aten.add.Tensor", {{"self", ValueRef{rounded}}, {"other", ValueRef{*bias}}}, {output}, module, source});
    }
    return Status();
  }

  bool canonical() const { return canonical_ranks_ > 0; }

  // Records in how many pieces a product computes its partial sums over this rank's inputs.
  Status divide_inputs(Node& node) {
    if (node.op == kAdaptedLinear) {
      return Status(StatusCode::kUnsupported, node_text(node) + " has adapters, which exclude canonical_ranks");
    }
    const auto linear = tensor_argument(node, "weight");
    const auto weight = linear ? linear : tensor_argument(node, "mat2");
    if (!weight || !shards_[static_cast<std::size_t>(*weight)]) {
      return Status(StatusCode::kUnsupported,
                    node_text(node) + " has partial sums that do not come from the inputs of a weight");
    }
    const Shard& shard = *shards_[static_cast<std::size_t>(*weight)];
    const Value& value = whole_.values[static_cast<std::size_t>(*weight)];
    const std::int64_t size = value.shape[static_cast<std::size_t>(shard.dim)].constant();
    if (shard.units % canonical_ranks_ != 0 || size % canonical_ranks_ != 0) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: {} inputs in {} units cannot be divided among canonical_ranks = {}",
                                node_text(node), size, shard.units, canonical_ranks_));
    }
    const int pieces = canonical_ranks_ / place(shard.group).size;
    node.arguments["pieces"] = SymbolicInt(pieces);
    for (std::size_t i = 0; i < whole_.parameters.size(); ++i) {
      if (whole_.parameters[i].value == *weight) result_.parts[i].pieces = pieces;
    }
    return Status();
  }

  // Restricts the lookup to this rank's rows of a table that is divided by rows.
  void restrict_to_own_rows(Node& node) const {
    const ValueId table = *tensor_argument(node, "weight");
    const Shard& shard = *shards_[static_cast<std::size_t>(table)];
    const SymbolicInt rows = whole_.values[static_cast<std::size_t>(table)].shape.front();
    node.op = "accord.embedding";
    node.arguments["first_row"] = SymbolicInt(local_extent(shard, rows.constant(), place(shard.group)).first);
    node.arguments["rows_in_all"] = rows;
  }

  static Status check_plain_addmm(const Node& node) {
    if (find_argument(node, "beta") == nullptr && find_argument(node, "alpha") == nullptr) return Status();
    return Status(StatusCode::kUnsupported, node_text(node) + " cannot be divided by rows with alpha or beta");
  }

  ValueId add_value(ValueId like, const std::string& suffix) {
    Value value = whole_.values[static_cast<std::size_t>(like)];
    value.name += suffix;
    result_.graph.values.push_back(std::move(value));
    return static_cast<ValueId>(result_.graph.values.size() - 1);
  }

  // Gathers an output that is divided in its last dimension.
  Status gather_output(ValueId& output) {
    const OptionalShard shard = shards_[static_cast<std::size_t>(output)];
    if (!shard) return Status();
    const Value& whole = whole_.values[static_cast<std::size_t>(output)];
    if (shard->dim + 1 != static_cast<int>(whole.shape.size())) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("output \"{}\" of the model still has {}; give the layer that produces it a row rule, or none",
                      whole.name, shard_text(*shard)));
    }
    std::vector<SymbolicInt> widths;
    const int size = place(shard->group).size;
    widths.reserve(static_cast<std::size_t>(size));
    if (shard->copies && size > shard->units) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("output \"{}\" of the model comes from a layer of which several ranks have copies", whole.name));
    }
    for (Rank rank = 0; rank < size; ++rank) {
      widths.emplace_back(local_extent(*shard, whole.shape.back().constant(), {rank, size}).count);
    }
    const ValueId gathered = add_value(output, ".gathered");
    result_.graph.nodes.push_back(Node{"accord.all_gather",
                                       {{"self", ValueRef{output}}, {"group", shard->group}, {"widths", widths}},
                                       {gathered},
                                       "",
                                       ""});
    output = gathered;
    return Status();
  }

  const Graph& whole_;
  const Manifest& manifest_;
  const TensorsByName tensors_;
  const std::map<std::string, GroupPlace>& places_;
  const int canonical_ranks_;
  const std::string& batch_symbol_;
  std::vector<OptionalShard> shards_;
  Partition result_;
};

}  // namespace

Status check_place(const std::string& group, const GroupPlace& place) {
  if (place.size >= 1 && place.rank >= 0 && place.rank < place.size) return Status();
  return Status(StatusCode::kInvalidArgument, fmt::format("group \"{}\": rank {} does not exist in a group of {} ranks",
                                                          group, place.rank, place.size));
}

Result<Partition> partition(const Graph& graph, const Manifest& manifest,
                            const std::map<std::string, GroupPlace>& places, int canonical_ranks,
                            const std::string& batch_symbol) {
  return Partitioner(graph, manifest, places, canonical_ranks, batch_symbol).run();
}

}  // namespace accord::engine
