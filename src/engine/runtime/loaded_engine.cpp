// Loading opens the package, cuts it for this rank, applies the passes, checks that every op can run, reads the
// weights, and prepares programs as a trial.
#include "engine/runtime/loaded_engine.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/package/package.hpp"
#include "engine/package/program.hpp"
#include "engine/package/sharding_rules.hpp"
#include "engine/partition/partition.hpp"
#include "engine/partition/stages.hpp"
#include "engine/passes/passes.hpp"
#include "engine/runtime/agreement.hpp"
#include "engine/runtime/context_inputs.hpp"
#include "engine/runtime/inputs.hpp"
#include "engine/runtime/targets.hpp"

namespace accord::engine {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// This rank's places in the package's groups, and in the groups over which any package can be loaded.
struct LoadGroups {
  std::map<std::string, GroupPlace> shards;
  GroupPlace stages;
  GroupPlace batch;
  std::optional<GroupPlace> context;
};

// A package may define a group with one of these names itself. Appends to `groups` the names that the package does
// not define.
Result<LoadGroups> find_load_groups(const Manifest& manifest, const std::map<std::string, GroupPlace>& places,
                                    std::vector<std::string>& groups) {
  LoadGroups found{places, {}, {}, {}};
  GroupPlace context;
  for (const auto& [name, place] :
       {std::pair{kStageGroup, &found.stages}, {kBatchGroup, &found.batch}, {kContextGroup, &context}}) {
    const bool of_package = std::find(groups.begin(), groups.end(), name) != groups.end();
    const auto given = places.find(name);
    if (given == places.end() || (of_package && !is_batch_parallel(manifest, name))) continue;
    *place = given->second;
    ACCORD_RETURN_IF_ERROR(check_place(name, *place));
    if (of_package) continue;  // experts are divided over it too
    found.shards.erase(name);
    groups.emplace_back(name);
    if (place == &context) found.context = context;
  }
  return found;
}

std::uint64_t region_bytes(const Parameters& parameters) {
  std::uint64_t bytes = 0;
  for (const Region& region : parameters.regions) bytes += region.size();
  return bytes + parameters.placed_bytes;
}

// Ranks whose weights and shapes differ still share the same collectives, in one order.
std::string collectives_digest(const Graph& graph, const std::map<std::string, GroupPlace>& groups) {
  std::string text;
  for (const auto& [name, place] : groups) text += fmt::format("{}={} ", name, place.size);
  for (const Node& node : graph.nodes) {
    const auto group = group_argument(node);
    if (!group) continue;
    const Value& output = graph.values[static_cast<std::size_t>(node.outputs.front())];
    text += fmt::format("{} {} {} {} ", node.op, *group, to_string(output.dtype), shape_text(output.shape));
  }
  return sha256_hex(bytes_of(text));
}

}  // namespace

Result<CutPackage> cut_package(const Package& package, const std::map<std::string, GroupPlace>& places,
                               int canonical_ranks) {
  CutPackage cut;
  cut.groups = package.manifest().groups;
  ACCORD_ASSIGN_OR_RETURN(const LoadGroups of_load, find_load_groups(package.manifest(), places, cut.groups));
  if (of_load.batch.size > 1) {
    if (package.manifest().language_model) {
      return Status(
          StatusCode::kUnsupported,
          fmt::format("\"{}\": group \"{}\" divides a batch, which a language model does not support; give each "
                      "replica its own requests",
                      package.path(), kBatchGroup));
    }
    ACCORD_ASSIGN_OR_RETURN(cut.batch, find_batch_split(package.graph(), of_load.batch));
  }
  if (package.has_encoder() && (of_load.stages.size > 1 || of_load.context)) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("\"{}\": group \"{}\" divides a model with an encoder, which is not supported; share its "
                              "layers over \"tp\"",
                              package.path(), of_load.context ? kContextGroup : kStageGroup));
  }
  ACCORD_ASSIGN_OR_RETURN(cut.part, partition(package.graph(), package.manifest(), of_load.shards, canonical_ranks,
                                              cut.batch ? cut.batch->symbol : ""));
  Graph& graph = cut.part.graph;
  graph = split_adapters(name_all_reduce(std::move(graph)));
  ACCORD_RETURN_IF_ERROR(check_supported(graph));
  if (of_load.stages.size > 1) {
    ACCORD_ASSIGN_OR_RETURN(
        graph, cut_stage(remove_dead_nodes(std::move(graph)), package.graph(), kStageGroup, of_load.stages));
  }
  if (of_load.context) {
    ACCORD_ASSIGN_OR_RETURN(cut.context, find_context_share(graph, package.manifest().language_model.has_value(),
                                                            *of_load.context, canonical_ranks));
  }
  return cut;
}

Status LoadedEngine::set_options(const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(settings_, check_options(options));
  ACCORD_ASSIGN_OR_RETURN(target_, create_target(options));
  budget_ = options.shared_limit ? options.shared_limit : std::make_shared<MemoryBudget>(options.memory_limit);
  return Status();
}

Result<LoadedEngine::OpenedPackage> LoadedEngine::open_and_cut(const std::string& path,
                                                               const std::map<std::string, GroupPlace>& places,
                                                               const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(model_.path, engine_package(path, places));
  ACCORD_RETURN_IF_ERROR(set_options(options));
  ACCORD_RETURN_IF_ERROR(target_->check_groups(places));
  ACCORD_ASSIGN_OR_RETURN(Package package, Package::open(model_.path, package_graph_));
  const auto& part = package.manifest().part;
  if (part) ACCORD_RETURN_IF_ERROR(check_part(*part, places));
  ACCORD_ASSIGN_OR_RETURN(CutPackage cut, cut_package(package, places, options.canonical_ranks));
  model_.graph = apply_passes(std::move(cut.part.graph));
  groups_.set_places(cut.groups, places, settings_.canonical_ranks);
  if (cut.context && cut.context->ranks > 1) cut.context->group = groups_.index().at(kContextGroup);
  if (cut.context && cut.context->parts > 1) model_.context = cut.context;
  ACCORD_RETURN_IF_ERROR(check_groups());
  return OpenedPackage{std::move(package), std::move(cut)};
}

Status LoadedEngine::check_loads(const std::string& path, const std::map<std::string, GroupPlace>& places) {
  for (const PackageGraph graph : {PackageGraph::kModel, PackageGraph::kEncoder}) {
    LoadedEngine engine;
    engine.package_graph_ = graph;
    ACCORD_ASSIGN_OR_RETURN(OpenedPackage opened, engine.open_and_cut(path, places, {}));
    ACCORD_ASSIGN_OR_RETURN(Parameters parameters,
                            engine.target_->load_parameters(opened.package, engine.model_.graph, opened.cut.part.parts,
                                                            {.contents = Contents::kLeftOut}));
    engine.weights_.set(std::make_shared<const Parameters>(std::move(parameters)));
    ACCORD_RETURN_IF_ERROR(engine.dry_run());
    if (!opened.package.has_encoder()) break;
  }
  return Status();
}

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::load(const std::string& path,
                                                         const std::map<std::string, GroupPlace>& places,
                                                         const LoadOptions& options) {
  return load_graph(path, places, options, PackageGraph::kModel);
}

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::load_graph(const std::string& path,
                                                               const std::map<std::string, GroupPlace>& places,
                                                               const LoadOptions& options, PackageGraph graph) {
  const auto begin = Clock::now();
  std::shared_ptr<LoadedEngine> engine(new LoadedEngine());
  engine->package_graph_ = graph;
  ACCORD_ASSIGN_OR_RETURN(OpenedPackage opened, engine->open_and_cut(path, places, options));
  auto& [package, cut] = opened;
  const auto& part = package.manifest().part;
  engine->model_.graph_sha256 = package.manifest().graph_sha256;
  for (const TensorEntry& entry : package.manifest().tensors)
    engine->model_.tensors.push_back({entry.name, entry.dtype, entry.shape, entry.sharding});
  ACCORD_ASSIGN_OR_RETURN(const std::shared_ptr<const Parameters> parameters,
                          engine->read_parameters(package, cut.part.parts));
  engine->weights_.set(parameters);
  engine->model_.language_model = package.manifest().language_model;
  engine->model_.batch_split = cut.batch;
  ACCORD_ASSIGN_OR_RETURN(engine->model_.tokenizer_json, package.text_file("tokenizer.json"));
  ACCORD_ASSIGN_OR_RETURN(engine->model_.chat_format_json, package.text_file("chat_format.json"));
  ACCORD_RETURN_IF_ERROR(engine->dry_run());
  ACCORD_RETURN_IF_ERROR(engine->check_arena());
  // Uses the names that the model gave, since a pass may replace an output by another value.
  engine->model_.inputs = tensor_infos(package.graph(), package.graph().inputs);
  engine->model_.outputs = tensor_infos(package.graph(), package.graph().outputs);
  // Ranks that load parts of their own share the program and the collectives.
  std::string identity =
      part ? part->program + collectives_digest(package.graph(), engine->groups_.places()) : package.manifest().sha256;
  identity +=
      fmt::format(" threads={} canonical_ranks={}", engine->settings_.threads, engine->settings_.canonical_ranks);
  identity += arithmetic_text(engine->settings_, engine->device());
  for (const auto& [name, place] : engine->groups_.places()) identity += fmt::format(" {}={}", name, place.size);
  engine->digest_ = sha256_hex(bytes_of(identity));
  if (graph == PackageGraph::kModel && package.has_encoder()) {
    LoadOptions of_encoder = options;
    of_encoder.shared_limit = engine->budget_;
    ACCORD_ASSIGN_OR_RETURN(engine->encoder_,
                            load_graph(engine->model_.path, places, of_encoder, PackageGraph::kEncoder));
  }
  engine->report_ = {package.metadata_bytes_read(), package.weight_bytes_read(), parameters->bytes.sharded,
                     parameters->bytes.replicated, std::chrono::duration<double>(Clock::now() - begin).count()};
  // Packing allocates and frees many large blocks; return them to the system.
  ::malloc_trim(0);
  return engine;
}

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::assemble(const EngineParts& parts,
                                                             const std::map<std::string, GroupPlace>& places,
                                                             const LoadOptions& options) {
  const auto begin = Clock::now();
  std::shared_ptr<LoadedEngine> engine(new LoadedEngine());
  engine->model_.path = parts.name;
  engine->model_.assembled = true;
  ACCORD_RETURN_IF_ERROR(engine->set_options(options));
  if (options.canonical_ranks != 0) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("\"{}\" is assembled from parts that are already divided for this rank: canonical_ranks needs a "
                    "package, whose weights are divided when it is loaded",
                    parts.name));
  }
  ACCORD_ASSIGN_OR_RETURN(Graph graph, parse_graph(parts.graph));
  ACCORD_RETURN_IF_ERROR(check_ops(graph));
  graph = split_adapters(name_all_reduce(std::move(graph)));
  ACCORD_RETURN_IF_ERROR(check_supported(graph));
  engine->model_.graph = apply_passes(graph);
  std::vector<std::string> names;
  names.reserve(places.size());
  for (const auto& [name, place] : places) names.push_back(name);
  engine->groups_.set_places(names, places, engine->settings_.canonical_ranks);
  ACCORD_RETURN_IF_ERROR(engine->check_groups());
  ACCORD_ASSIGN_OR_RETURN(Parameters parameters,
                          engine->target_->reference_parameters(engine->model_.graph, parts.weights));
  ACCORD_RETURN_IF_ERROR(engine->budget_->reserve({"packed weights", region_bytes(parameters)}));
  const std::uint64_t parameter_bytes = parameters.bytes.replicated;
  engine->weights_.set(std::make_shared<const Parameters>(std::move(parameters)));
  SymbolValues symbols;
  for (const Symbol& symbol : graph.symbols) symbols[symbol.name] = symbol.min;
  for (const auto& [name, value] : parts.sizes) symbols[name] = value;
  ACCORD_ASSIGN_OR_RETURN(engine->largest_arena_bytes_, engine->try_program(symbols));
  const MemoryPart arena{"an arena", engine->largest_arena_bytes_};
  ACCORD_RETURN_IF_ERROR(engine->budget_->check(std::span(&arena, 1)));
  engine->model_.inputs = tensor_infos(graph, graph.inputs);
  engine->model_.outputs = tensor_infos(graph, graph.outputs);
  engine->digest_ = collectives_digest(engine->model_.graph, engine->groups_.places()) +
                    arithmetic_text(engine->settings_, engine->device());
  engine->report_ = {0, 0, 0, parameter_bytes, std::chrono::duration<double>(Clock::now() - begin).count()};
  ::malloc_trim(0);
  return engine;
}

Result<Package> LoadedEngine::open_package() const {
  if (!model_.assembled) return Package::open(model_.path, package_graph_);
  return Status(StatusCode::kUnsupported,
                fmt::format("\"{}\" was assembled from parts: it has no package", model_.path));
}

// Checks the groups that the graph itself names. Collectives that were written in the model record the sizes of their
// groups.
Status LoadedEngine::check_groups() const {
  for (const Node& node : model_.graph.nodes) {
    const auto name = group_argument(node);
    if (!name) continue;
    const auto group = groups_.places().find(*name);
    if (group == groups_.places().end()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: this rank's place in group \"{}\" was not given", node_text(node), *name));
    }
    const auto size = static_cast<std::int64_t>(group->second.size);
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t expected, integer_argument(node, "group_size", size));
    if (expected == size) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: it needs a group \"{}\" of {} ranks, but the group has {}", node_text(node), *name,
                              expected, size));
  }
  return Status();
}

Status LoadedEngine::bind(const std::map<std::string, Communicator>& communicators) {
  ACCORD_RETURN_IF_ERROR(groups_.bind(communicators, digest_));
  return encoder_ ? encoder_->bind_agreed(communicators) : Status();
}

Status LoadedEngine::bind_agreed(const std::map<std::string, Communicator>& communicators) {
  ACCORD_RETURN_IF_ERROR(groups_.bind_agreed(communicators));
  return encoder_ ? encoder_->bind_agreed(communicators) : Status();
}

Status LoadedEngine::unbind() {
  ACCORD_RETURN_IF_ERROR(groups_.unbind());
  return encoder_ ? encoder_->unbind() : Status();
}

void LoadedEngine::close() {
  groups_.close();
  if (encoder_) encoder_->close();
}

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::load_and_bind(
    const std::string& path, const std::map<std::string, Communicator>& communicators, const LoadOptions& options) {
  std::map<std::string, GroupPlace> places;
  for (const auto& [name, communicator] : communicators) places[name] = {communicator.rank(), communicator.size()};
  Result<std::shared_ptr<LoadedEngine>> loaded = load(path, places, options);
  const std::string digest = loaded.ok() ? (*loaded)->digest_ : "";
  ACCORD_RETURN_IF_ERROR(agree(with_peers(communicators), {loaded.status(), digest}));
  ACCORD_RETURN_IF_ERROR((*loaded)->bind_agreed(communicators));
  return loaded;
}

}  // namespace accord::engine
