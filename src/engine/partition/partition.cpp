// One pass over the graph in its order. Each weight starts with the shard that the manifest gives it; each node gets the
// shards of its outputs from the rule of its op, its literal sizes (12 heads) are replaced by the local ones, and where the
// rule says that partial sums come out, an all_reduce and the bias are put behind the node. Then all shapes become local.
#include "engine/partition/partition.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/partition/carry.hpp"

namespace accord::engine {
namespace {

class Partitioner {
 public:
  Partitioner(const Graph& whole, const Manifest& manifest, const std::map<std::string, GroupPlace>& places)
      : whole_(whole),
        manifest_(manifest),
        tensors_(tensors_by_name(manifest)),
        places_(places),
        shards_(whole.values.size()) {
    result_.graph = whole;
    result_.graph.nodes.clear();
  }

  Result<Partition> run() {
    ACCORD_RETURN_IF_ERROR(check_places());
    for (const Parameter& parameter : whole_.parameters) ACCORD_RETURN_IF_ERROR(place_parameter(parameter));
    for (const Node& node : whole_.nodes) ACCORD_RETURN_IF_ERROR(place_node(node));
    for (const ValueId output : whole_.outputs) ACCORD_RETURN_IF_ERROR(check_output(output));
    for (std::size_t id = 0; id < whole_.values.size(); ++id) {
      Value& value = result_.graph.values[id];
      if (const OptionalShard& shard = shards_[id]) {
        const std::size_t dim = static_cast<std::size_t>(shard->dim);
        value.shape[dim] = local_extent(*shard, value.shape[dim].constant(), place(shard->group)).count;
      }
    }
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
      if (place.size < 1 || place.rank < 0 || place.rank >= place.size) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("group \"{}\": there is no rank {} of {} ranks", group, place.rank, place.size));
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

  // Gives the tensor its shard and this rank's granules of it, if its group has more than one rank.
  Status divide(const TensorEntry& entry, ValueId value, TensorPart& part) {
    const Sharding& sharding = *entry.sharding;
    const GroupPlace& here = place(sharding.group);
    if (here.size == 1) return Status();
    const std::int64_t size = entry.shape[static_cast<std::size_t>(sharding.dim)];
    const Shard shard{sharding.group, sharding.dim, sharding.unit, (size + sharding.unit - 1) / sharding.unit};
    if (shard.units < here.size) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("tensor \"{}\" ({} elements along dimension {}) has {} unit{} of {} to share, but group \"{}\" "
                      "has {} ranks; use at most {} ranks or export with a smaller unit",
                      entry.name, size, sharding.dim, shard.units, shard.units == 1 ? "" : "s", sharding.unit,
                      sharding.group, here.size, shard.units));
    }
    const UnitRange units = units_of_rank(shard.units, here.rank, here.size);
    part.shape[static_cast<std::size_t>(shard.dim)] = local_extent(shard, size, here).count;
    part.first_granule = static_cast<std::uint64_t>(units.first);
    part.granules = static_cast<std::uint64_t>(units.count);
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
    const CarryQuestion question{whole_, node, shards_};
    const CarryFunction rule = carry_rule(node.op);
    if (rule == nullptr) return question.refuse("no rule is known for this op");
    ACCORD_ASSIGN_OR_RETURN(const CarryAnswer answer, rule(question));
    if (answer.partial_over) return reduce_after(std::move(node), *answer.partial_over);
    for (const ValueId output : node.outputs) {
      ACCORD_RETURN_IF_ERROR(check_carried(question, output, answer.output));
      shards_[static_cast<std::size_t>(output)] = answer.output;
    }
    // Of view and expand.
    const auto sizes = node.arguments.find("size");
    if (sizes != node.arguments.end() && answer.output) sizes->second = local_shape(node.outputs.front());
    result_.graph.nodes.push_back(std::move(node));
    return Status();
  }

  // A rule that is wrong about the cut dimension would make wrong shapes: this says so instead.
  Status check_carried(const CarryQuestion& question, ValueId output, const OptionalShard& shard) const {
    if (!shard) return Status();
    const SymbolicShape& shape = question.value(output).shape;
    if (shard->dim < 0 || shard->dim >= static_cast<int>(shape.size()) ||
        !shape[static_cast<std::size_t>(shard->dim)].is_constant()) {
      return question.refuse("its output has no constant dimension that is cut like its input");
    }
    const std::int64_t size = shape[static_cast<std::size_t>(shard->dim)].constant();
    if ((size + shard->unit - 1) / shard->unit != shard->units) {
      return question.refuse(fmt::format("its output has {} elements where {} are expected", size, shard_text(*shard)));
    }
    return Status();
  }

  std::vector<SymbolicInt> local_shape(ValueId id) const {
    SymbolicShape shape = whole_.values[static_cast<std::size_t>(id)].shape;
    const Shard& shard = *shards_[static_cast<std::size_t>(id)];
    SymbolicInt& size = shape[static_cast<std::size_t>(shard.dim)];
    size = local_extent(shard, size.constant(), place(shard.group)).count;
    return shape;
  }

  // product -> all_reduce -> + bias, so that the bias counts once.
  Status reduce_after(Node node, const std::string& group) {
    const ValueId output = node.outputs.front();
    const bool addmm = op_family(node.op) == "aten.addmm";
    const std::string bias_name = addmm ? "self" : "bias";
    const auto bias = tensor_argument(node, bias_name);
    node.arguments.erase(bias_name);
    if (addmm) {
      ACCORD_RETURN_IF_ERROR(check_plain_addmm(node));
      node.op = "aten.mm.default";
      node.arguments["self"] = node.arguments["mat1"];
      node.arguments.erase("mat1");
    }
    const ValueId partial = add_value(output, ".partial");
    const ValueId reduced = bias ? add_value(output, ".reduced") : output;
    node.outputs = {partial};
    const std::string module = node.module;
    const std::string source = node.source;
    result_.graph.nodes.push_back(std::move(node));
    result_.graph.nodes.push_back(Node{"accord.all_reduce",
                                       {{"self", ValueRef{partial}}, {"group", group}, {"op", std::string("sum")}},
                                       {reduced},
                                       module,
                                       source});
    if (bias) {
      result_.graph.nodes.push_back(
          Node{"aten.add.Tensor", {{"self", ValueRef{reduced}}, {"other", ValueRef{*bias}}}, {output}, module, source});
    }
    return Status();
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

  Status check_output(ValueId output) const {
    const OptionalShard& shard = shards_[static_cast<std::size_t>(output)];
    if (!shard) return Status();
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("output \"{}\" of the model still has {}; give the layer that makes it a row rule, or none",
                    whole_.values[static_cast<std::size_t>(output)].name, shard_text(*shard)));
  }

  const Graph& whole_;
  const Manifest& manifest_;
  const TensorsByName tensors_;
  const std::map<std::string, GroupPlace>& places_;
  std::vector<OptionalShard> shards_;
  Partition result_;
};

}  // namespace

Result<Partition> partition(const Graph& graph, const Manifest& manifest,
                            const std::map<std::string, GroupPlace>& places) {
  return Partitioner(graph, manifest, places).run();
}

}  // namespace accord::engine
