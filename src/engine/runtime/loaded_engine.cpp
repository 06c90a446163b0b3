// Loading: open the package, cut it for this rank, apply the passes, see that every op can run, read the weights, and prepare
// one program for the smallest and one for the largest shapes without running them, so that a graph that contradicts itself
// is refused here and not in the first run. Binding: each rank checks its communicators, then all tell each other how
// that went and what they loaded; also a rank that failed takes part, so that nobody waits for it.
#include "engine/runtime/loaded_engine.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include "base/clock.hpp"
#include "base/config.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/passes/passes.hpp"
#include "engine/runtime/agreement.hpp"
#include "engine/runtime/inputs.hpp"
#include "engine/runtime/op_registry.hpp"

namespace accord::engine {
namespace {

constexpr int kMostThreads = 1024;

Result<int> thread_count(const LoadOptions& options) {
  int threads = options.threads;
  if (threads == 0) {
    if (!config().ok()) return config().status();
    threads = config()->threads;
  }
  if (threads >= 1 && threads <= kMostThreads) return threads;
  return Status(StatusCode::kInvalidArgument, fmt::format("threads is {}, not 1 to {}", threads, kMostThreads));
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Groups of one rank have nothing to agree on.
std::map<std::string, Communicator> with_peers(const std::map<std::string, Communicator>& communicators) {
  std::map<std::string, Communicator> found;
  for (const auto& [name, communicator] : communicators) {
    if (communicator.size() > 1) found.emplace(name, communicator);
  }
  return found;
}

}  // namespace

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::load(const std::string& path,
                                                         const std::map<std::string, GroupPlace>& places,
                                                         const LoadOptions& options) {
  const auto begin = Clock::now();
  std::shared_ptr<LoadedEngine> engine(new LoadedEngine());
  engine->path_ = path;
  ACCORD_ASSIGN_OR_RETURN(engine->threads_, thread_count(options));
  ACCORD_ASSIGN_OR_RETURN(Package package, Package::open(path));
  ACCORD_ASSIGN_OR_RETURN(Partition part, partition(package.graph(), package.manifest(), places));
  ACCORD_RETURN_IF_ERROR(check_supported(part.graph));
  engine->graph_ = apply_passes(std::move(part.graph));
  ACCORD_RETURN_IF_ERROR(check_supported(engine->graph_));
  engine->set_groups(package.manifest().groups, places);
  ACCORD_ASSIGN_OR_RETURN(engine->parameters_, load_parameters(package, engine->graph_, part.parts));
  ACCORD_RETURN_IF_ERROR(engine->dry_run());
  // By the names that the model gave: a pass may let another value stand for an output.
  engine->inputs_ = tensor_infos(package.graph(), package.graph().inputs);
  engine->outputs_ = tensor_infos(package.graph(), package.graph().outputs);

  std::string identity = package.manifest().sha256 + fmt::format(" threads={}", engine->threads_);
  for (const auto& [name, place] : engine->groups_) identity += fmt::format(" {}={}", name, place.size);
  engine->digest_ = sha256_hex(bytes_of(identity));
  engine->report_ = {package.metadata_bytes_read(), package.weight_bytes_read(), engine->parameters_.bytes.sharded,
                     engine->parameters_.bytes.replicated, std::chrono::duration<double>(Clock::now() - begin).count()};
  // Packing went through many large blocks; give them back to the system.
  ::malloc_trim(0);
  return engine;
}

void LoadedEngine::set_groups(const std::vector<std::string>& names, const std::map<std::string, GroupPlace>& places) {
  for (const std::string& name : names) {
    const auto place = places.find(name);
    groups_[name] = place == places.end() ? GroupPlace{} : place->second;
    if (groups_[name].size > 1) group_index_.emplace(name, static_cast<int>(group_index_.size()));
  }
  communicators_.resize(group_index_.size());
}

Status LoadedEngine::dry_run() const {
  SymbolValues smallest;
  SymbolValues largest;
  for (const Symbol& symbol : graph_.symbols) {
    smallest[symbol.name] = symbol.min;
    largest[symbol.name] = symbol.max;
  }
  for (const SymbolValues* symbols : {&smallest, &largest}) {
    const Result<Program> program = prepare(*symbols);
    if (!program.ok()) return program.status().with_context("\"" + path_ + "\"");
    if (graph_.symbols.empty()) break;
  }
  return Status();
}

Result<Program> LoadedEngine::prepare(const SymbolValues& symbols) const {
  return prepare_program({graph_, parameters_, group_index_, threads_}, symbols);
}

// Every group of more than one rank needs its communicator, of the rank and size that it was loaded for.
Status LoadedEngine::check_communicators(const std::map<std::string, Communicator>& communicators) const {
  for (const auto& [name, communicator] : communicators) {
    const auto group = groups_.find(name);
    if (group == groups_.end()) {
      std::vector<std::string_view> names;
      for (const auto& known : groups_) names.push_back(known.first);
      return unknown_name("group", name, names);
    }
    const GroupPlace& place = group->second;
    if (communicator.rank() == place.rank && communicator.size() == place.size) continue;
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("group \"{}\" was loaded for rank {} of {}, but communicator \"{}\" is rank {} of {}", name,
                    place.rank, place.size, communicator.name(), communicator.rank(), communicator.size()));
  }
  for (const auto& [name, place] : groups_) {
    if (place.size == 1 || communicators.contains(name)) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("group \"{}\" was loaded for rank {} of {}: bind needs its communicator", name,
                              place.rank, place.size));
  }
  return Status();
}

Status LoadedEngine::bind(const std::map<std::string, Communicator>& communicators) {
  Status mine = check_communicators(communicators);
  if (mine.ok()) mine = check_unbound();
  ACCORD_RETURN_IF_ERROR(agree(with_peers(communicators), {mine, digest_}));
  return become_bound(communicators);
}

Status LoadedEngine::check_unbound() const {
  const std::lock_guard lock(mutex_);
  return StateMachine(state_).move(EngineEvent::kBind);
}

Status LoadedEngine::become_bound(const std::map<std::string, Communicator>& communicators) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(state_.move(EngineEvent::kBind));
  for (const auto& [name, index] : group_index_)
    communicators_[static_cast<std::size_t>(index)] = communicators.at(name);
  return Status();
}

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::load_and_bind(
    const std::string& path, const std::map<std::string, Communicator>& communicators, const LoadOptions& options) {
  std::map<std::string, GroupPlace> places;
  for (const auto& [name, communicator] : communicators) places[name] = {communicator.rank(), communicator.size()};
  Result<std::shared_ptr<LoadedEngine>> loaded = load(path, places, options);
  const std::string digest = loaded.ok() ? (*loaded)->digest_ : "";
  ACCORD_RETURN_IF_ERROR(agree(with_peers(communicators), {loaded.status(), digest}));
  ACCORD_RETURN_IF_ERROR((*loaded)->become_bound(communicators));
  return loaded;
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
