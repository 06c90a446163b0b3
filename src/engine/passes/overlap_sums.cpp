// Sizes become numbers first. Then nodes are visited in order. If a sum over the ranks follows a product, the
// product's rows are divided into two halves. A node that reads divided rows is divided too if its rows are
// independent of each other, as determined by the rules that propagate shards (carry.hpp): the halves are two units of
// a shard. Any other node reads whole tensors, joined by cat.
//
// The nodes of each half are collected in phases. A phase ends by starting a sum, and the next one begins by waiting
// for it. Whenever whole tensors are needed, and at the end, the phases are emitted alternately, first half, second
// half, so that each sum overlaps with the other half's phase.
#include "engine/passes/overlap_sums.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/rounding.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/partition/carry.hpp"
#include "engine/passes/fixed_sizes.hpp"
#include "engine/passes/passes.hpp"

namespace accord::engine {
namespace {

constexpr std::int64_t kGrain = 16;  // products are efficient with multiples of this many rows

// Ops that work element by element, or along the last dimension.
Result<ShardResult> carry_rows(const ShardQuery& query) {
  ACCORD_ASSIGN_OR_RETURN(ShardResult result, carry_elementwise(query));
  const int last = query.dims(query.node.outputs.front()) - 1;
  if (result.output && result.output->dim == last) return query.unsupported("it needs whole rows");
  return result;
}

// Products of rows with whole weights.
Result<ShardResult> carry_products(const ShardQuery& query) {
  const auto input = tensor_argument(query.node, "input");
  const OptionalShard rows = input ? query.shard(*input) : std::nullopt;
  if (!rows || rows->dim + 1 == query.dims(*input)) return query.unsupported("it needs whole rows");
  return ShardResult{rows, std::nullopt};
}

CarryFunction rule_of(const Node& node) {
  for (const std::string_view op : {"accord.rms_norm", "accord.add_rms_norm", "accord.add_layer_norm", "accord.rotary",
                                    "aten.layer_norm.default", "aten.rms_norm.default"}) {
    if (node.op == op) return carry_rows;
  }
  for (const std::string_view op : {"accord.linear", "accord.gated_linear", "accord.linears"}) {
    if (node.op == op) return carry_products;
  }
  return op_family(node.op) == "aten.addmm" ? nullptr : carry_rule(node.op);
}

class RowDivider {
 public:
  RowDivider(Graph graph, const OverlapRequest& request) : request_(request), given_(std::move(graph)) {
    find_sums();
    split_norms();
    shards_.resize(given_.values.size());
    halves_.resize(given_.values.size());
    divided_.graph = given_;
    divided_.graph.nodes.clear();
  }

  std::optional<DividedGraph> run() && {
    if (partial_.empty()) return std::nullopt;
    for (at_ = 0; at_ < given_.nodes.size(); ++at_) process(given_.nodes[at_]);
    at_ = given_.nodes.size() - 1;  // nodes that join outputs are attributed to the last node
    for (const ValueId output : given_.outputs) concatenate(output);
    emit_phases();
    return std::move(divided_);
  }

 private:
  using Halves = std::array<ValueId, 2>;
  /// Nodes that wait, and the positions of the nodes that they come from.
  using Phase = std::vector<std::pair<Node, std::size_t>>;

  const SymbolicShape& shape(ValueId id) const { return given_.values[to_size(id)].shape; }

  // Finds the products whose results are summed over ranks and have enough rows.
  void find_sums() {
    std::set<ValueId> products;
    for (const Node& node : given_.nodes) {
      const std::string_view family = op_family(node.op);
      if (family == "aten.linear" || family == "accord.linear" || family == "aten.mm") {
        products.insert(node.outputs.front());
      }
      const auto partial = partial_sums(node);
      if (!partial || products.count(*partial) == 0) continue;
      const SymbolicShape& sizes = shape(*partial);
      std::int64_t rows = 1;
      for (std::size_t dim = 0; dim + 1 < sizes.size(); ++dim) rows *= sizes[dim].constant();
      if (rows >= request_.min_rows && cut(*partial)) partial_.insert(*partial);
    }
  }

  // Returns the value that `node` sums over ranks, or nullopt if it is no such node.
  std::optional<ValueId> partial_sums(const Node& node) const {
    if (node.op.rfind("accord.all_reduce", 0) != 0) return std::nullopt;
    const Argument* op = find_argument(node, "op");
    if (op != nullptr && *op != Argument(std::string("sum"))) return std::nullopt;
    if (!request_.has_peers(group_argument(node).value_or(""))) return std::nullopt;
    const auto self = tensor_argument(node, "self");
    return self ? self : tensor_argument(node, "input");
  }

  // Separates a fused sum and norm into two nodes again if the sum is one of those to overlap.
  void split_norms() {
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < given_.nodes.size(); ++i) {
      Node node = std::move(given_.nodes[i]);
      const std::string_view norm = norm_of_reduce_norm(node.op);
      const auto partial = norm.empty() ? std::nullopt : partial_sums(node);
      if (partial && partial_.count(*partial) > 0) {
        const auto sum = static_cast<ValueId>(given_.values.size());
        given_.values.push_back(given_.values[to_size(*partial)]);
        given_.values.back().name += ".summed";
        Node reduce{"accord.all_reduce", {{"self", ValueRef{*partial}}}, {sum}, node.module, node.source};
        reduce.arguments["group"] = node.arguments.at("group");
        nodes.push_back(std::move(reduce));
        origins_.push_back(i);
        node.op = norm;
        node.arguments.erase("group");
        node.arguments[tensor_argument(node, "self") ? "self" : "input"] = ValueRef{sum};
      }
      nodes.push_back(std::move(node));
      origins_.push_back(i);
    }
    given_.nodes = std::move(nodes);
  }

  // Halves the first dimension that has several elements, so that each half is contiguous. Returns nullopt if only the
  // last dimension has several.
  OptionalShard cut(ValueId id) const {
    const SymbolicShape& sizes = shape(id);
    int dim = 0;
    while (dim + 1 < static_cast<int>(sizes.size()) && sizes[to_size(dim)].constant() == 1) ++dim;
    if (dim + 1 >= static_cast<int>(sizes.size())) return std::nullopt;
    const std::int64_t size = sizes[to_size(dim)].constant();
    std::int64_t half = (size + 1) / 2;
    if (size > 2 * kGrain) half = (half + kGrain - 1) / kGrain * kGrain;
    if (half >= size) return std::nullopt;
    return Shard{.group = "", .dim = dim, .unit = half, .units = 2};
  }

  void process(const Node& node) {
    if (!node.outputs.empty() && partial_.count(node.outputs.front()) > 0) {
      const auto input = tensor_argument(node, "input");
      const ValueId rows = input ? *input : *tensor_argument(node, "self");
      if (!shards_[to_size(rows)]) divide(rows, *cut(node.outputs.front()));
    }
    bool divided = false;
    for_each_input(node, [&](ValueId id) { divided = divided || shards_[to_size(id)]; });
    if (divided && (divide_sum(node) || divide_rows(node))) return;
    for_each_input(node, [&](ValueId id) { concatenate(id); });
    add(node);
  }

  // Handles a sum over the ranks if its rows are divided.
  bool divide_sum(const Node& node) {
    const auto partial = partial_sums(node);
    if (!partial || node.op != "accord.all_reduce" || !halves_[to_size(*partial)]) return false;
    const Halves parts = *halves_[to_size(*partial)];
    const Shard shard = *shards_[to_size(*partial)];
    const Halves started = add_halves(given_.values[to_size(*partial)], shard, ".started");
    const Halves sums = make_halves(node.outputs.front(), shard);
    for (const std::size_t half : {0U, 1U}) {
      Node start{
          "accord.all_reduce_start", {{"self", ValueRef{parts[half]}}}, {started[half]}, node.module, node.source};
      start.arguments["group"] = node.arguments.at("group");
      defer(half, std::move(start));
      phases_[half].emplace_back();
      defer(half,
            {"accord.all_reduce_wait", {{"self", ValueRef{started[half]}}}, {sums[half]}, node.module, node.source});
    }
    return true;
  }

  /// Inputs that are whole and are to be divided like the others.
  using ToDivide = std::vector<std::pair<ValueId, Shard>>;

  // Returns the whole inputs that `node` reads element by element together with divided ones.
  ToDivide shards_of_others(const Node& node) const {
    ToDivide others;
    const CarryFunction rule = rule_of(node);
    if ((rule != carry_elementwise && rule != carry_rows) || node.outputs.empty()) return others;
    const int dims = static_cast<int>(shape(node.outputs.front()).size());
    OptionalShard common;
    for_each_input(node, [&](ValueId id) {
      const OptionalShard& shard = shards_[to_size(id)];
      if (shard) common = shard->in_dim(shard->dim + dims - static_cast<int>(shape(id).size()));
    });
    for_each_input(node, [&](ValueId id) {
      const int dim = common ? common->dim - (dims - static_cast<int>(shape(id).size())) : -1;
      if (dim < 0 || shards_[to_size(id)] || shape(id)[to_size(dim)] == SymbolicInt(1)) return;
      others.emplace_back(id, common->in_dim(dim));
    });
    return others;
  }

  bool divide_rows(const Node& node) {
    const CarryFunction rule = rule_of(node);
    if (rule == nullptr || node.outputs.empty()) return false;
    const ToDivide others = shards_of_others(node);
    for (const auto& [id, shard] : others) shards_[to_size(id)] = shard;
    const Result<ShardResult> result = rule({given_, node, shards_});
    for (const auto& [id, shard] : others) shards_[to_size(id)].reset();
    if (!result.ok() || !result->output || result->partial_over) return false;
    for (const ValueId output : node.outputs) {
      if (!fits(output, *result->output)) return false;
    }
    for (const auto& [id, shard] : others) divide(id, shard);
    std::vector<Halves> outputs;
    for (const ValueId output : node.outputs) outputs.push_back(make_halves(output, *result->output));
    for (const std::size_t half : {0U, 1U}) {
      Node part = node;
      for_each_input(part, [&](ValueId& id) {
        if (halves_[to_size(id)]) id = (*halves_[to_size(id)])[half];
      });
      for (std::size_t i = 0; i < outputs.size(); ++i) part.outputs[i] = outputs[i][half];
      const auto sizes = part.arguments.find("size");
      if (sizes != part.arguments.end()) sizes->second = divided_.graph.values[to_size(part.outputs.front())].shape;
      defer(half, std::move(part));
    }
    return true;
  }

  bool fits(ValueId id, const Shard& shard) const {
    const SymbolicShape& sizes = shape(id);
    if (shard.dim < 0 || shard.dim >= static_cast<int>(sizes.size())) return false;
    const std::int64_t size = sizes[to_size(shard.dim)].constant();
    return shard.unit < size && size <= 2 * shard.unit;
  }

  // Adds new values like `whole`, but half the size.
  Halves add_halves(const Value& whole, const Shard& shard, const std::string& suffix) {
    Halves halves{};
    const std::int64_t size = whole.shape[to_size(shard.dim)].constant();
    for (const std::size_t half : {0U, 1U}) {
      Value value = whole;
      value.name += suffix + (half == 0 ? ".first" : ".second");
      value.shape[to_size(shard.dim)] = half == 0 ? shard.unit : size - shard.unit;
      halves[half] = static_cast<ValueId>(divided_.graph.values.size());
      divided_.graph.values.push_back(std::move(value));
    }
    return halves;
  }

  Halves make_halves(ValueId id, const Shard& shard) {
    const Halves halves = add_halves(given_.values[to_size(id)], shard, "");
    shards_[to_size(id)] = shard;
    halves_[to_size(id)] = halves;
    return halves;
  }

  // Adds the halves of a whole tensor, as views of it.
  void divide(ValueId id, const Shard& shard) {
    const Halves halves = make_halves(id, shard);
    is_whole_.insert(id);
    const SymbolicInt half = shard.unit;
    const std::array<SymbolicInt, 3> bounds = {0, half, shape(id)[to_size(shard.dim)]};
    for (const std::size_t i : {0U, 1U}) {
      Node slice{"aten.slice.Tensor", {{"self", ValueRef{id}}, {"dim", SymbolicInt(shard.dim)}}, {halves[i]}, "", ""};
      slice.arguments["start"] = bounds[i];
      slice.arguments["end"] = bounds[i + 1];
      add(std::move(slice));
    }
  }

  void concatenate(ValueId id) {
    if (!halves_[to_size(id)] || is_whole_.count(id) > 0) return;
    emit_phases();
    const auto& [first, second] = *halves_[to_size(id)];
    Node cat{"aten.cat.default", {}, {id}, "", ""};
    cat.arguments["tensors"] = std::vector<ValueRef>{{first}, {second}};
    cat.arguments["dim"] = SymbolicInt(shards_[to_size(id)]->dim);
    add(std::move(cat));
    is_whole_.insert(id);
  }

  void add(Node node) {
    divided_.graph.nodes.push_back(std::move(node));
    divided_.origins.push_back(origins_[at_]);
  }

  void defer(std::size_t half, Node node) {
    if (phases_[half].empty()) phases_[half].emplace_back();
    phases_[half].back().emplace_back(std::move(node), origins_[at_]);
  }

  void emit_phases() {
    for (std::size_t phase = 0; phase < phases_[0].size(); ++phase) {
      for (std::vector<Phase>& phases : phases_) {
        for (auto& [node, origin] : phases[phase]) {
          divided_.graph.nodes.push_back(std::move(node));
          divided_.origins.push_back(origin);
        }
      }
    }
    phases_ = {};
  }

  const OverlapRequest& request_;
  Graph given_;
  std::vector<std::size_t> origins_;           // of the nodes of given_
  std::set<ValueId> partial_;                  // results of the products whose rows are divided
  std::vector<OptionalShard> shards_;          // by ValueId: how it is divided
  std::vector<std::optional<Halves>> halves_;  // by ValueId: its halves
  std::set<ValueId> is_whole_;                 // divided values that also exist as a whole
  std::array<std::vector<Phase>, 2> phases_;   // of the first half and of the second
  std::size_t at_ = 0;                         // the current node
  DividedGraph divided_;
};

}  // namespace

Result<std::optional<DividedGraph>> overlap_sums(const Graph& graph, const OverlapRequest& request) {
  ACCORD_ASSIGN_OR_RETURN(Graph fixed, with_fixed_sizes(graph, request.symbols));
  return RowDivider(std::move(fixed), request).run();
}

}  // namespace accord::engine
