#pragma once
// A flight record as a value: the last operations of one rank of one communicator. docs/diagnose.md describes its
// JSON.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/counters.hpp"
#include "exec/request_record.hpp"
#include "flight/format.hpp"

namespace accord::flight {

std::string_view to_string(OperationState state);

/// Times are nanoseconds of the host's monotonic clock, which all its processes share.
struct Operation {
  std::uint64_t number = 0;  ///< within its order, from 1; ranks in agreement make the same call under the same number
  OperationState state = OperationState::kRunning;
  exec::RequestRecord request;
  std::string algorithm;                        ///< empty before it began
  std::optional<std::int64_t> queued_ns = {};   ///< if it was queued behind others
  std::optional<std::int64_t> started_ns = {};  ///< for a quick one, when it first waited for another rank
  std::optional<std::int64_t> ended_ns = {};
  std::optional<Rank> waits_for = {};  ///< the rank that it waits for, or last waited for, if it waited long
};

/// One order of operations: the collectives, or the messages to or from one peer.
struct Order {
  Direction direction = Direction::kNone;  ///< kNone: the collectives
  Rank peer = -1;
  std::vector<Operation> operations;  ///< by number

  /// The last operation that began and has not ended well; if there is none, the one that began last; null if none
  /// has begun.
  const Operation* last_begun() const;
};

struct Failure {
  StatusCode code = StatusCode::kInternal;
  std::string message;
  std::vector<Rank> ranks;  ///< at fault
  std::int64_t at_ns = 0;
};

struct Peer {
  int process = 0;
  int host = 0;  ///< number of its host within the communicator
};

struct FlightLog {
  std::string id;  ///< of the communicator, 16 hexadecimal digits, equal on its ranks
  std::string name;
  Rank rank = 0;
  std::string host;         ///< of this rank, as in topology::Place
  std::vector<Peer> peers;  ///< by rank, including this one
  CommunicatorState state = CommunicatorState::kReady;
  std::optional<Failure> failure;
  std::int64_t created_ns = 0;
  std::int64_t taken_ns = 0;       ///< when this was read
  std::int64_t taken_unix_ns = 0;  ///< the same moment since 1970
  Counters counters;
  std::vector<Order> orders;  ///< orders in use, the collectives first

  int size() const { return static_cast<int>(peers.size()); }
  /// Null if it was not used.
  const Order* order(Direction direction, Rank peer = -1) const;
};

/// Conversion to JSON text, an object of version kDumpVersion, and back. kCorrupt says what is wrong; kUnsupported:
/// another version.
inline constexpr int kDumpVersion = 1;
std::string to_json(const FlightLog& log);
Result<FlightLog> flight_log_from_json(std::string_view text);

}  // namespace accord::flight
