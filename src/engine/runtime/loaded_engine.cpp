// Loading opens the package, cuts it for this rank, applies the passes, checks that every op can run, reads the
// weights, and prepares programs as a trial.
#include "engine/runtime/loaded_engine.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <bit>

#include "accord/nccl.hpp"
#include "base/clock.hpp"
#include "base/config.hpp"
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
#include "engine/runtime/inputs.hpp"
#include "engine/runtime/targets.hpp"

namespace accord::engine {
namespace {

constexpr int kMaxThreads = 1024;

Result<int> thread_count(const LoadOptions& options) {
  int threads = options.threads;
  if (threads == 0) {
    if (!config().ok()) return config().status();
    threads = config()->threads;
  }
  if (threads >= 1 && threads <= kMaxThreads) return threads;
  return Status(StatusCode::kInvalidArgument, fmt::format("threads is {}; expected 1 to {}", threads, kMaxThreads));
}

Status check_canonical(int ranks) {
  if (ranks == 0 || (ranks > 0 && std::has_single_bit(static_cast<unsigned>(ranks)))) return Status();
  return Status(StatusCode::kInvalidArgument, fmt::format("canonical_ranks is {}, which is not a power of two", ranks));
}

Status check_sums(const LoadOptions& options) {
  const auto invalid = [](const std::string& why) { return Status(StatusCode::kInvalidArgument, why); };
  if (options.overlap_rows < 0)
    return invalid(fmt::format("overlap_rows is {}; expected 0 or more", options.overlap_rows));
  if (!options.all_reduce_dtype) return Status();
  if (*options.all_reduce_dtype != DType::kInt8) {
    return invalid(fmt::format("all_reduce_dtype is {}; expected none or int8", to_string(*options.all_reduce_dtype)));
  }
  if (options.canonical_ranks != 0)
    return invalid("all_reduce_dtype rounds sums, but canonical_ranks needs exact sums: leave out one of them");
  if (options.overlap_rows != 0)
    return invalid("overlap_rows cannot be combined with all_reduce_dtype: leave out one of them");
  return Status();
}

Status check_activations(const LoadOptions& options) {
  if (!options.activation_dtype) return Status();
  const DType dtype = *options.activation_dtype;
  const bool on_cpu = options.device.type == DeviceType::kCpu;
  if (dtype != DType::kInt8 && dtype != DType::kFloat8E4M3FN) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("activation_dtype is {}; expected none, int8 on the CPU, or float8_e4m3fn on GPUs",
                              to_string(dtype)));
  }
  if (on_cpu == (dtype == DType::kInt8)) return Status();
  return Status(StatusCode::kUnsupported,
                fmt::format("activation_dtype {} is for engines on {}, not on {}", to_string(dtype),
                            on_cpu ? "GPUs" : "the CPU", to_string(options.device)));
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// This rank's places in the package's groups, and in the groups over which any package can be loaded.
struct LoadGroups {
  std::map<std::string, GroupPlace> shards;
  GroupPlace stages;
  GroupPlace batch;
};

// A package may define a group with one of these names itself. Appends to `groups` the names that the package does
// not define.
Result<LoadGroups> find_load_groups(const Manifest& manifest, const std::map<std::string, GroupPlace>& places,
                                    std::vector<std::string>& groups) {
  LoadGroups found{places, {}, {}};
  for (const auto& [name, place] : {std::pair{kStageGroup, &found.stages}, std::pair{kBatchGroup, &found.batch}}) {
    const bool of_package = std::find(groups.begin(), groups.end(), name) != groups.end();
    const auto given = places.find(name);
    if (given == places.end() || (of_package && !is_batch_parallel(manifest, name))) continue;
    *place = given->second;
    ACCORD_RETURN_IF_ERROR(check_place(name, *place));
    if (of_package) continue;  // experts are divided over it too
    found.shards.erase(name);
    groups.emplace_back(name);
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
  ACCORD_ASSIGN_OR_RETURN(cut.part, partition(package.graph(), package.manifest(), of_load.shards, canonical_ranks,
                                              cut.batch ? cut.batch->symbol : ""));
  Graph& graph = cut.part.graph;
  graph = name_all_reduce(std::move(graph));
  ACCORD_RETURN_IF_ERROR(check_supported(graph));
  if (of_load.stages.size > 1) {
    ACCORD_ASSIGN_OR_RETURN(
        graph, cut_stage(remove_dead_nodes(std::move(graph)), package.graph(), kStageGroup, of_load.stages));
  }
  return cut;
}

Status LoadedEngine::set_options(const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(threads_, thread_count(options));
  ACCORD_RETURN_IF_ERROR(check_canonical(options.canonical_ranks));
  ACCORD_RETURN_IF_ERROR(check_sums(options));
  ACCORD_RETURN_IF_ERROR(check_activations(options));
  canonical_ranks_ = options.canonical_ranks;
  overlap_rows_ = options.overlap_rows;
  all_reduce_dtype_ = options.all_reduce_dtype;
  activation_dtype_ = options.activation_dtype;
  ACCORD_ASSIGN_OR_RETURN(target_, create_target(options));
  copies_outputs_ = options.outputs == DeviceType::kCpu;
  budget_ = options.shared_limit ? options.shared_limit : std::make_shared<MemoryBudget>(options.memory_limit);
  return Status();
}

// How sums are sent and products computed; equal on all ranks.
std::string LoadedEngine::arithmetic_text() const {
  const auto text = [](const std::optional<DType>& dtype) { return dtype ? to_string(*dtype) : "none"; };
  return fmt::format(" overlap_rows={} all_reduce_dtype={} activation_dtype={} device={}", overlap_rows_,
                     text(all_reduce_dtype_), text(activation_dtype_),
                     device().type == DeviceType::kCpu ? "cpu" : "cuda");
}

Result<LoadedEngine::OpenedPackage> LoadedEngine::open_and_cut(const std::string& path,
                                                               const std::map<std::string, GroupPlace>& places,
                                                               const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(path_, engine_package(path, places));
  ACCORD_RETURN_IF_ERROR(set_options(options));
  ACCORD_RETURN_IF_ERROR(target_->check_groups(places));
  ACCORD_ASSIGN_OR_RETURN(Package package, Package::open(path_));
  const auto& part = package.manifest().part;
  if (part) ACCORD_RETURN_IF_ERROR(check_part(*part, places));
  ACCORD_ASSIGN_OR_RETURN(CutPackage cut, cut_package(package, places, options.canonical_ranks));
  graph_ = apply_passes(std::move(cut.part.graph));
  set_groups(cut.groups, places);
  ACCORD_RETURN_IF_ERROR(check_groups());
  return OpenedPackage{std::move(package), std::move(cut)};
}

Status LoadedEngine::check_loads(const std::string& path, const std::map<std::string, GroupPlace>& places) {
  LoadedEngine engine;
  ACCORD_ASSIGN_OR_RETURN(OpenedPackage opened, engine.open_and_cut(path, places, {}));
  ACCORD_ASSIGN_OR_RETURN(Parameters parameters,
                          engine.target_->load_parameters(opened.package, engine.graph_, opened.cut.part.parts,
                                                          {.contents = Contents::kLeftOut}));
  engine.parameters_ = std::make_shared<const Parameters>(std::move(parameters));
  return engine.dry_run();
}

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::load(const std::string& path,
                                                         const std::map<std::string, GroupPlace>& places,
                                                         const LoadOptions& options) {
  const auto begin = Clock::now();
  std::shared_ptr<LoadedEngine> engine(new LoadedEngine());
  ACCORD_ASSIGN_OR_RETURN(OpenedPackage opened, engine->open_and_cut(path, places, options));
  auto& [package, cut] = opened;
  const auto& part = package.manifest().part;
  engine->graph_sha256_ = package.manifest().graph_sha256;
  for (const TensorEntry& entry : package.manifest().tensors)
    engine->tensors_.push_back({entry.name, entry.dtype, entry.shape, entry.sharding});
  ACCORD_ASSIGN_OR_RETURN(engine->parameters_, engine->read_parameters(package, cut.part.parts));
  engine->language_model_ = package.manifest().language_model;
  engine->batch_split_ = cut.batch;
  ACCORD_ASSIGN_OR_RETURN(engine->tokenizer_json_, package.text_file("tokenizer.json"));
  ACCORD_ASSIGN_OR_RETURN(engine->chat_format_json_, package.text_file("chat_format.json"));
  ACCORD_RETURN_IF_ERROR(engine->dry_run());
  ACCORD_RETURN_IF_ERROR(engine->check_arena());
  // Uses the names that the model gave, since a pass may replace an output by another value.
  engine->inputs_ = tensor_infos(package.graph(), package.graph().inputs);
  engine->outputs_ = tensor_infos(package.graph(), package.graph().outputs);
  // Ranks that load parts of their own share the program and the collectives.
  std::string identity =
      part ? part->program + collectives_digest(package.graph(), engine->groups_) : package.manifest().sha256;
  identity += fmt::format(" threads={} canonical_ranks={}", engine->threads_, engine->canonical_ranks_);
  identity += engine->arithmetic_text();
  for (const auto& [name, place] : engine->groups_) identity += fmt::format(" {}={}", name, place.size);
  engine->digest_ = sha256_hex(bytes_of(identity));
  engine->report_ = {package.metadata_bytes_read(), package.weight_bytes_read(), engine->parameters_->bytes.sharded,
                     engine->parameters_->bytes.replicated,
                     std::chrono::duration<double>(Clock::now() - begin).count()};
  // Packing allocates and frees many large blocks; return them to the system.
  ::malloc_trim(0);
  return engine;
}

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::assemble(const EngineParts& parts,
                                                             const std::map<std::string, GroupPlace>& places,
                                                             const LoadOptions& options) {
  const auto begin = Clock::now();
  std::shared_ptr<LoadedEngine> engine(new LoadedEngine());
  engine->path_ = parts.name;
  engine->assembled_ = true;
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
  graph = name_all_reduce(std::move(graph));
  ACCORD_RETURN_IF_ERROR(check_supported(graph));
  engine->graph_ = apply_passes(graph);
  std::vector<std::string> names;
  names.reserve(places.size());
  for (const auto& [name, place] : places) names.push_back(name);
  engine->set_groups(names, places);
  ACCORD_RETURN_IF_ERROR(engine->check_groups());
  ACCORD_ASSIGN_OR_RETURN(Parameters parameters, engine->target_->reference_parameters(engine->graph_, parts.weights));
  ACCORD_RETURN_IF_ERROR(engine->budget_->reserve({"packed weights", region_bytes(parameters)}));
  engine->parameters_ = std::make_shared<const Parameters>(std::move(parameters));
  SymbolValues symbols;
  for (const Symbol& symbol : graph.symbols) symbols[symbol.name] = symbol.min;
  for (const auto& [name, value] : parts.sizes) symbols[name] = value;
  ACCORD_ASSIGN_OR_RETURN(engine->largest_arena_bytes_, engine->try_program(symbols));
  const MemoryPart arena{"an arena", engine->largest_arena_bytes_};
  ACCORD_RETURN_IF_ERROR(engine->budget_->check(std::span(&arena, 1)));
  engine->inputs_ = tensor_infos(graph, graph.inputs);
  engine->outputs_ = tensor_infos(graph, graph.outputs);
  engine->digest_ = collectives_digest(engine->graph_, engine->groups_) + engine->arithmetic_text();
  engine->report_ = {0, 0, 0, engine->parameters_->bytes.replicated,
                     std::chrono::duration<double>(Clock::now() - begin).count()};
  ::malloc_trim(0);
  return engine;
}

Result<Package> LoadedEngine::open_package() const {
  if (!assembled_) return Package::open(path_);
  return Status(StatusCode::kUnsupported, fmt::format("\"{}\" was assembled from parts: it has no package", path_));
}

void LoadedEngine::set_groups(const std::vector<std::string>& names, const std::map<std::string, GroupPlace>& places) {
  for (const std::string& name : names) {
    const auto place = places.find(name);
    groups_[name] = place == places.end() ? GroupPlace{} : place->second;
    if (groups_[name].size > 1) group_index_.emplace(name, static_cast<int>(group_index_.size()));
  }
  communicators_.resize(group_index_.size());
}

// Checks the groups that the graph itself names. Collectives that were written in the model record the sizes of their
// groups.
Status LoadedEngine::check_groups() const {
  for (const Node& node : graph_.nodes) {
    const auto name = group_argument(node);
    if (!name) continue;
    const auto group = groups_.find(*name);
    if (group == groups_.end()) {
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

bool LoadedEngine::divides_runs() const {
  return group_index_.contains(kStageGroup) || group_index_.contains(kBatchGroup);
}

Communicator LoadedEngine::batch_communicator() const {
  return *communicators_[static_cast<std::size_t>(group_index_.at(kBatchGroup))];
}

EngineState LoadedEngine::state() const {
  const std::lock_guard lock(mutex_);
  return state_.state();
}

void LoadedEngine::close() {
  const std::lock_guard lock(mutex_);
  // Closing is allowed in every state.
  static_cast<void>(state_.move(EngineEvent::kClose));
}

Status LoadedEngine::begin_run() {
  const std::lock_guard lock(mutex_);
  return state_.move(EngineEvent::kRunBegins);
}

void LoadedEngine::end_run() {
  const std::lock_guard lock(mutex_);
  static_cast<void>(state_.move(EngineEvent::kRunEnds));
}

}  // namespace accord::engine
