#include "flight/flight_log.hpp"

#include <algorithm>

namespace accord {

std::string_view to_string(CommunicatorState state) {
  switch (state) {
    case CommunicatorState::kReady: return "ready";
    case CommunicatorState::kFailed: return "failed";
    case CommunicatorState::kClosed: return "closed";
  }
  return "unknown";
}

namespace flight {

std::string_view to_string(OperationState state) {
  switch (state) {
    case OperationState::kBeingWritten: break;
    case OperationState::kQueued: return "queued";
    case OperationState::kRunning: return "running";
    case OperationState::kDone: return "done";
    case OperationState::kFailed: return "failed";
  }
  return "";
}

const Operation* Order::last_begun() const {
  // Receives of different tags end out of order: one that waits may have later ones behind it that have ended.
  const auto waits = std::find_if(operations.rbegin(), operations.rend(), [](const Operation& operation) {
    return operation.state == OperationState::kRunning ||
           (operation.state == OperationState::kFailed && operation.started_ns.has_value());
  });
  if (waits != operations.rend()) return &*waits;
  const auto last = std::find_if(operations.rbegin(), operations.rend(), [](const Operation& operation) {
    return operation.state != OperationState::kQueued &&
           (operation.state != OperationState::kFailed || operation.started_ns.has_value());
  });
  return last == operations.rend() ? nullptr : &*last;
}

const Order* FlightLog::order(Direction direction, Rank peer) const {
  const auto found = std::find_if(orders.begin(), orders.end(), [&](const Order& order) {
    return order.direction == direction && order.peer == peer;
  });
  return found == orders.end() ? nullptr : &*found;
}

}  // namespace flight
}  // namespace accord
