// Each rank checks its communicators. Then all ranks exchange the outcome and what they loaded. A rank that failed
// takes part as well, so that no rank waits for it.
#include <fmt/format.h>

#include "base/text.hpp"
#include "engine/runtime/agreement.hpp"
#include "engine/runtime/loaded_engine.hpp"

namespace accord::engine {
namespace {

// Leaves out groups of one rank, which have nothing to agree on.
std::map<std::string, Communicator> with_peers(const std::map<std::string, Communicator>& communicators) {
  std::map<std::string, Communicator> found;
  for (const auto& [name, communicator] : communicators) {
    if (communicator.size() > 1) found.emplace(name, communicator);
  }
  return found;
}

}  // namespace

// Every group of more than one rank needs a communicator with the rank and size that the engine was loaded for.
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
  if (mine.ok()) mine = check_bindable();
  ACCORD_RETURN_IF_ERROR(agree(with_peers(communicators), {mine, digest_}));
  return finish_bind(communicators);
}

Status LoadedEngine::check_bindable() const {
  const std::lock_guard lock(mutex_);
  return StateMachine(state_).move(EngineEvent::kBind);
}

// Sums of canonical ranks run over the engine's own groups, whose selection rules allow no other order.
Result<Communicator> LoadedEngine::communicator_for(const Communicator& given) const {
  if (canonical_ranks_ == 0) return given;
  Communicator parent = given;
  CommunicatorOptions options;
  options.name = given.name() + ".canonical";
  options.select = "deterministic=canonical";
  const Result<std::optional<Communicator>> made = parent.split(0, given.rank(), options);
  if (!made.ok()) return made.status();
  return made->value();
}

Status LoadedEngine::finish_bind(const std::map<std::string, Communicator>& communicators) {
  std::map<std::string, Communicator> own;
  for (const auto& item : group_index_) {
    ACCORD_ASSIGN_OR_RETURN(Communicator communicator, communicator_for(communicators.at(item.first)));
    own.emplace(item.first, std::move(communicator));
  }
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(state_.move(EngineEvent::kBind));
  for (const auto& [name, index] : group_index_) communicators_[static_cast<std::size_t>(index)] = own.at(name);
  bindings_.fetch_add(1, std::memory_order_release);
  return Status();
}

Status LoadedEngine::unbind() {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(state_.move(EngineEvent::kUnbind));
  communicators_.assign(communicators_.size(), std::nullopt);
  return Status();
}

Result<std::shared_ptr<LoadedEngine>> LoadedEngine::load_and_bind(
    const std::string& path, const std::map<std::string, Communicator>& communicators, const LoadOptions& options) {
  std::map<std::string, GroupPlace> places;
  for (const auto& [name, communicator] : communicators) places[name] = {communicator.rank(), communicator.size()};
  Result<std::shared_ptr<LoadedEngine>> loaded = load(path, places, options);
  const std::string digest = loaded.ok() ? (*loaded)->digest_ : "";
  ACCORD_RETURN_IF_ERROR(agree(with_peers(communicators), {loaded.status(), digest}));
  ACCORD_RETURN_IF_ERROR((*loaded)->finish_bind(communicators));
  return loaded;
}

std::map<std::string, Communicator> LoadedEngine::peers() const {
  std::map<std::string, Communicator> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, index] : group_index_) {
    const std::optional<Communicator>& communicator = communicators_[static_cast<std::size_t>(index)];
    if (communicator) found.emplace(name, *communicator);
  }
  return found;
}

}  // namespace accord::engine
