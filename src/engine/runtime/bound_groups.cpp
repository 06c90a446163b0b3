// Binding: each rank checks its communicators. Then all ranks exchange the outcome and what they loaded. A rank that
// failed takes part as well, so that no rank waits for it.
#include "engine/runtime/bound_groups.hpp"

#include <fmt/format.h>

#include "base/text.hpp"
#include "engine/runtime/agreement.hpp"

namespace accord::engine {

std::map<std::string, Communicator> with_peers(const std::map<std::string, Communicator>& communicators) {
  std::map<std::string, Communicator> found;
  for (const auto& [name, communicator] : communicators) {
    if (communicator.size() > 1) found.emplace(name, communicator);
  }
  return found;
}

void BoundGroups::set_places(const std::vector<std::string>& names, const std::map<std::string, GroupPlace>& places,
                             int canonical_ranks) {
  canonical_ranks_ = canonical_ranks;
  for (const std::string& name : names) {
    const auto place = places.find(name);
    places_[name] = place == places.end() ? GroupPlace{} : place->second;
    if (places_[name].size > 1) index_.emplace(name, static_cast<int>(index_.size()));
  }
  communicators_.resize(index_.size());
}

// Every group of more than one rank needs a communicator with the rank and size that the engine was loaded for.
Status BoundGroups::check(const std::map<std::string, Communicator>& communicators) const {
  for (const auto& [name, communicator] : communicators) {
    const auto group = places_.find(name);
    if (group == places_.end()) {
      std::vector<std::string_view> names;
      for (const auto& known : places_) names.push_back(known.first);
      return unknown_name("group", name, names);
    }
    const GroupPlace& place = group->second;
    if (communicator.rank() == place.rank && communicator.size() == place.size) continue;
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("group \"{}\" was loaded for rank {} of {}, but communicator \"{}\" is rank {} of {}", name,
                    place.rank, place.size, communicator.name(), communicator.rank(), communicator.size()));
  }
  for (const auto& [name, place] : places_) {
    if (place.size == 1 || communicators.contains(name)) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("group \"{}\" was loaded for rank {} of {}: bind needs its communicator", name,
                              place.rank, place.size));
  }
  const std::lock_guard lock(mutex_);
  return StateMachine(state_).move(EngineEvent::kBind);
}

Status BoundGroups::bind(const std::map<std::string, Communicator>& communicators, const std::string& digest) {
  ACCORD_RETURN_IF_ERROR(agree(with_peers(communicators), {check(communicators), digest}));
  return bind_agreed(communicators);
}

// Sums of canonical ranks run over the engine's own groups, whose selection rules allow no other order.
Result<Communicator> BoundGroups::communicator_for(const Communicator& given) const {
  if (canonical_ranks_ == 0) return given;
  Communicator parent = given;
  CommunicatorOptions options;
  options.name = given.name() + ".canonical";
  options.select = "deterministic=canonical";
  const Result<std::optional<Communicator>> made = parent.split(0, given.rank(), options);
  if (!made.ok()) return made.status();
  return made->value();
}

Status BoundGroups::bind_agreed(const std::map<std::string, Communicator>& communicators) {
  std::map<std::string, Communicator> own;
  for (const auto& item : index_) {
    ACCORD_ASSIGN_OR_RETURN(Communicator communicator, communicator_for(communicators.at(item.first)));
    own.emplace(item.first, std::move(communicator));
  }
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(state_.move(EngineEvent::kBind));
  for (const auto& [name, index] : index_) communicators_[static_cast<std::size_t>(index)] = own.at(name);
  bindings_.fetch_add(1, std::memory_order_release);
  return Status();
}

Status BoundGroups::unbind() {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(state_.move(EngineEvent::kUnbind));
  communicators_.assign(communicators_.size(), std::nullopt);
  return Status();
}

EngineState BoundGroups::state() const {
  const std::lock_guard lock(mutex_);
  return state_.state();
}

void BoundGroups::close() {
  const std::lock_guard lock(mutex_);
  // Closing is allowed in every state.
  static_cast<void>(state_.move(EngineEvent::kClose));
}

Status BoundGroups::begin_run() {
  const std::lock_guard lock(mutex_);
  return state_.move(EngineEvent::kRunBegins);
}

void BoundGroups::end_run() {
  const std::lock_guard lock(mutex_);
  static_cast<void>(state_.move(EngineEvent::kRunEnds));
}

std::optional<Communicator> BoundGroups::communicator(const std::string& group) const {
  const auto found = index_.find(group);
  return found == index_.end() ? std::nullopt : communicators_[static_cast<std::size_t>(found->second)];
}

std::map<std::string, Communicator> BoundGroups::peers() const {
  std::map<std::string, Communicator> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, index] : index_) {
    const std::optional<Communicator>& communicator = communicators_[static_cast<std::size_t>(index)];
    if (communicator) found.emplace(name, *communicator);
  }
  return found;
}

}  // namespace accord::engine
