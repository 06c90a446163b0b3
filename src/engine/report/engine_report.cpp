// Partitions the package's graph for this rank again, as loading did, to know the ops before the passes. Prepares the
// program again with notes about each node and the arena. For a collective, the selector names the algorithm that the
// rank's communicators use if all ranks are on this machine.
#include "engine/report/engine_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/config.hpp"
#include "base/text.hpp"
#include "comm/internal.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/package/package.hpp"
#include "engine/report/fates.hpp"
#include "engine/report/node_work.hpp"
#include "plan/selector.hpp"
#include "topology/topology.hpp"

namespace accord::engine {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ProgramNotes::Kind;

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::kSteps: return "step";
    case Kind::kView: return "view";
    case Kind::kConstant: return "constant";
  }
  return "?";
}

// Returns the collective that an op is or begins with, as in "accord.all_reduce_add_rms_norm".
std::optional<Collective> collective_in(std::string_view op) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                      Collective::kAllToAll, Collective::kBroadcast}) {
    if (op.substr(op.find('.') + 1).starts_with(to_string(collective))) return collective;
  }
  return std::nullopt;
}

// Returns the algorithm of a collective if the ranks of its group are on this machine.
Result<std::string> algorithm_of(Collective collective, std::size_t bytes, int ranks) {
  ACCORD_RETURN_IF_ERROR(config().status());
  ACCORD_ASSIGN_OR_RETURN(const comm::SelectText select, comm::read_select(config()->select));
  ACCORD_ASSIGN_OR_RETURN(const plan::Selector selector, plan::Selector::create(select.table));
  ACCORD_ASSIGN_OR_RETURN(const topology::Place place, topology::this_place());
  const topology::Topology topology(std::vector<topology::Place>(static_cast<std::size_t>(ranks), place));
  ACCORD_ASSIGN_OR_RETURN(
      const plan::Choice choice,
      selector.choose({.collective = collective, .bytes = bytes, .readable = topology.readable()}, topology));
  return std::string(choice.algorithm->name);
}

class Reporter {
 public:
  Reporter(const LoadedEngine& engine, const SymbolValues& symbols)
      : engine_(engine), graph_(engine.graph()), symbols_(symbols) {}

  Result<Json> report() {
    ACCORD_ASSIGN_OR_RETURN(const Program program, engine_.prepare(symbols_, &notes_));
    ACCORD_RETURN_IF_ERROR(trace_origins());
    ACCORD_ASSIGN_OR_RETURN(Json ops, ops_json());
    Json groups = Json::object();
    for (const auto& [name, place] : engine_.groups().places())
      groups[name] = {{"rank", place.rank}, {"size", place.size}};
    Json sizes = Json::object();
    for (const auto& [name, value] : symbols_) sizes[name] = value;
    const LoadReport& loaded = engine_.report();
    return Json{{"groups", std::move(groups)},
                {"device", accord::to_string(engine_.device())},
                {"threads", engine_.settings().threads},
                {"sizes", std::move(sizes)},
                {"shard_bytes", loaded.shard_bytes},
                {"replicated_bytes", loaded.replicated_bytes},
                {"arena_bytes", program.arena_bytes},
                {"flops", flops_},
                {"bytes", bytes_},
                {"collective_bytes", collective_bytes_},
                {"ops", std::move(ops)},
                {"model", std::move(origins_)},
                {"arena", arena_json()}};
  }

 private:
  const std::string& name_of(ValueId id) const { return graph_.values[static_cast<std::size_t>(id)].name; }

  // Finds what became of each op of the model.
  Status trace_origins() {
    origins_of_.resize(graph_.nodes.size());
    const Result<Package> opened = engine_.open_package();
    // An engine assembled from parts in memory does not know the original ops.
    if (!opened.ok()) return opened.status().code() == StatusCode::kUnsupported ? Status() : opened.status();
    const Package& package = *opened;
    ACCORD_ASSIGN_OR_RETURN(const CutPackage cut,
                            cut_package(package, engine_.groups().places(), engine_.settings().canonical_ranks));
    const Graph& model = cut.part.graph;
    for (std::size_t i = 0; i < cut.part.parts.size(); ++i) {
      const TensorPart& part = cut.part.parts[i];
      ACCORD_ASSIGN_OR_RETURN(const TensorEntry* entry, package.tensor(part.tensor));
      stored_[model.parameters[i].value] = entry->granule_range_bytes(part.first_granule, part.granules);
    }
    const std::vector<Outcome> found = outcomes(model);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Node& node = model.nodes[i];
      const Outcome& outcome = found[i];
      if (outcome.node >= static_cast<int>(graph_.nodes.size())) {
        return Status(StatusCode::kMismatch, engine_.model().path + " is not the package that was loaded");
      }
      Json origin = {{"op", node.op}, {"module", node.module}, {"source", node.source}};
      if (outcome.kind == Outcome::Kind::kRemoved) {
        origin["runs"] = "removed";
        origin["by"] = outcome.pass;
      } else {
        const bool fused = outcome.kind == Outcome::Kind::kFused;
        origin["runs"] = fused ? "fused" : to_string(notes_.nodes[static_cast<std::size_t>(outcome.node)]);
        origin["in"] = outcome.node;
        if (fused) origins_of_[static_cast<std::size_t>(outcome.node)].push_back(static_cast<int>(i));
      }
      origins_.push_back(std::move(origin));
    }
    return Status();
  }

  Result<Json> ops_json() {
    Json ops = Json::array();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const Kind kind = notes_.nodes[i];
      NodeWork work;
      if (kind == Kind::kSteps) {
        ACCORD_ASSIGN_OR_RETURN(work, work_of(graph_, node, symbols_, stored_));
      }
      flops_ += work.flops;
      bytes_ += work.bytes;
      Json outputs = Json::array();
      for (const ValueId id : node.outputs) {
        const Value& value = graph_.values[static_cast<std::size_t>(id)];
        Json shape = Json::array();
        for (const SymbolicInt& size : value.shape) {
          ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, size.evaluate(symbols_));
          shape.push_back(number);
        }
        outputs.push_back({{"name", value.name}, {"dtype", accord::to_string(value.dtype)}, {"shape", shape}});
      }
      Json op = {
          {"op", node.op},       {"module", node.module}, {"source", node.source}, {"runs", to_string(kind)},
          {"outputs", outputs},  {"flops", work.flops},   {"bytes", work.bytes},   {"weight_bytes", work.weight_bytes},
          {"of", origins_of_[i]}};
      if (kind == Kind::kSteps) ACCORD_RETURN_IF_ERROR(add_collective(node, op));
      ops.push_back(std::move(op));
    }
    return ops;
  }

  Status add_collective(const Node& node, Json& op) {
    const auto name = group_argument(node);
    const auto self = tensor_argument(node, "self");
    const auto given = self ? self : tensor_argument(node, "input");
    const auto collective = collective_in(node.op);
    if (!name || !given || !collective) return Status();
    const auto place = engine_.groups().places().find(*name);
    if (place == engine_.groups().places().end() || place->second.size == 1) return Status();
    std::uint64_t bytes = size_of(graph_.values[static_cast<std::size_t>(*given)].dtype);
    for (const SymbolicInt& size : graph_.values[static_cast<std::size_t>(*given)].shape) {
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, size.evaluate(symbols_));
      bytes *= static_cast<std::uint64_t>(number);
    }
    std::string algorithm = "nccl";
    if (engine_.device().type == DeviceType::kCpu) {
      ACCORD_ASSIGN_OR_RETURN(algorithm, algorithm_of(*collective, bytes, place->second.size));
    }
    collective_bytes_ += bytes;
    op["collective"] = {{"group", *name}, {"ranks", place->second.size}, {"bytes", bytes}, {"algorithm", algorithm}};
    return Status();
  }

  Json arena_json() const {
    Json pieces = Json::array();
    for (const ProgramNotes::Piece& piece : notes_.arena) {
      pieces.push_back({{"offset", piece.offset},
                        {"bytes", piece.bytes},
                        {"first", piece.first},
                        {"last", piece.last},
                        {"value", piece.value < 0 ? Json() : Json(name_of(piece.value))}});
    }
    return pieces;
  }

  const LoadedEngine& engine_;
  const Graph& graph_;
  const SymbolValues& symbols_;
  ProgramNotes notes_;
  StoredBytes stored_;
  std::vector<std::vector<int>> origins_of_;  // by node: the model's ops that are part of it
  Json origins_ = Json::array();
  std::uint64_t flops_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t collective_bytes_ = 0;
};

}  // namespace

Result<SymbolValues> chosen_sizes(const Graph& graph, const std::map<std::string, std::int64_t>& sizes) {
  SymbolValues values;
  std::vector<std::string_view> names;
  for (const Symbol& symbol : graph.symbols) {
    names.push_back(symbol.name);
    const auto given = sizes.find(symbol.name);
    values[symbol.name] = given == sizes.end() ? symbol.min : given->second;
    if (values[symbol.name] >= symbol.min && values[symbol.name] <= symbol.max) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is {}, expected {} to {}", symbol.name, values[symbol.name], symbol.min, symbol.max));
  }
  for (const auto& size : sizes) {
    if (!values.contains(size.first)) return unknown_name("size", size.first, names);
  }
  return values;
}

Result<Json> report_of(const LoadedEngine& engine, const SymbolValues& symbols) {
  return Reporter(engine, symbols).report();
}

}  // namespace accord::engine
