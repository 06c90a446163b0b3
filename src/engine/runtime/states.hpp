#pragma once
// The states of an engine and the moves between them.

#include "accord/engine.hpp"

namespace accord::engine {

/// What can happen to an engine.
enum class EngineEvent : std::uint8_t { kBind, kUnbind, kRunBegins, kRunEnds, kClose };

/// Where an engine is, and how many runs are under way. Not thread-safe: its owner locks.
class StateMachine {
 public:
  EngineState state() const { return state_; }
  /// Goes where the table says, or stays and gives kWrongState, which says what to do instead.
  Status move(EngineEvent event);

 private:
  EngineState state_ = EngineState::kUnbound;
  int runs_ = 0;
};

}  // namespace accord::engine
