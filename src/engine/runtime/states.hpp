#pragma once
// The states of an engine and the moves between them.

#include "accord/engine.hpp"

namespace accord::engine {

/// The events that can happen to an engine.
enum class EngineEvent : std::uint8_t { kBind, kUnbind, kRunBegins, kRunEnds, kClose };

/// The state of an engine, and how many runs are under way. Not thread-safe: its owner locks.
class StateMachine {
 public:
  EngineState state() const { return state_; }
  /// Moves as the table says, or stays and returns kWrongState with what to do instead.
  Status move(EngineEvent event);

 private:
  EngineState state_ = EngineState::kUnbound;
  int runs_ = 0;
};

}  // namespace accord::engine
