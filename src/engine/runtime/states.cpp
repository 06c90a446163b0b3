// Unbound -> Bound -> Running -> Bound, Bound -> Unbound, any -> Closed; a bound engine may be bound again to other
// communicators. Several contexts may run at once: Running lasts until the last run ends. A run that ends after
// close() changes nothing.
#include "engine/runtime/states.hpp"

#include <string>

namespace accord {

std::string_view to_string(EngineState state) {
  switch (state) {
    case EngineState::kUnbound: return "unbound";
    case EngineState::kBound: return "bound";
    case EngineState::kRunning: return "running";
    case EngineState::kClosed: return "closed";
  }
  return "unknown";
}

}  // namespace accord

namespace accord::engine {
namespace {

struct Move {
  EngineEvent event;
  EngineState from;
  EngineState to;
};

constexpr Move kMoves[] = {
    {EngineEvent::kBind, EngineState::kUnbound, EngineState::kBound},
    {EngineEvent::kBind, EngineState::kBound, EngineState::kBound},
    {EngineEvent::kUnbind, EngineState::kBound, EngineState::kUnbound},
    {EngineEvent::kUnbind, EngineState::kUnbound, EngineState::kUnbound},
    {EngineEvent::kRunBegins, EngineState::kBound, EngineState::kRunning},
    {EngineEvent::kRunBegins, EngineState::kRunning, EngineState::kRunning},
    {EngineEvent::kRunEnds, EngineState::kRunning, EngineState::kBound},  // Running while other runs are under way
    {EngineEvent::kRunEnds, EngineState::kClosed, EngineState::kClosed},
    {EngineEvent::kClose, EngineState::kUnbound, EngineState::kClosed},
    {EngineEvent::kClose, EngineState::kBound, EngineState::kClosed},
    {EngineEvent::kClose, EngineState::kRunning, EngineState::kClosed},
    {EngineEvent::kClose, EngineState::kClosed, EngineState::kClosed},
};

Status rejected(EngineEvent event, EngineState state) {
  const std::string state_text = " (the engine is " + std::string(to_string(state)) + ")";
  if (state == EngineState::kClosed) return Status(StatusCode::kWrongState, "the engine was closed");
  if (event == EngineEvent::kRunBegins)
    return Status(StatusCode::kWrongState, "bind the engine before running it" + state_text);
  return Status(StatusCode::kWrongState, "the groups of an engine cannot change during a run" + state_text);
}

}  // namespace

Status StateMachine::move(EngineEvent event) {
  for (const Move& move : kMoves) {
    if (move.event != event || move.from != state_) continue;
    if (event == EngineEvent::kRunBegins) ++runs_;
    if (event == EngineEvent::kRunEnds) --runs_;
    const bool others_run = event == EngineEvent::kRunEnds && runs_ > 0;
    state_ = others_run ? move.from : move.to;
    return Status();
  }
  return rejected(event, state_);
}

}  // namespace accord::engine
