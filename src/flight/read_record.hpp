#pragma once
// Reads a record while it is being written, by this process or another.

#include <cstddef>
#include <optional>
#include <span>

#include "base/ticks.hpp"
#include "flight/flight_log.hpp"

namespace accord::flight {

/// Converts the ticks of a record to time: their source, and a moment of the start of the record's process.
struct Timebase {
  TickSource source = TickSource::kMonotonic;
  Moment start;
};

/// Reads the record at the start of `bytes`. Returns nullopt if it holds no communicator, or none any more. Fails
/// with kCorrupt if it is not a record: nothing in it is trusted, except that its bytes can be read. An operation
/// that is being written is left out.
Result<std::optional<FlightLog>> read_record(std::span<const std::byte> bytes, const Timebase& time);

/// Reads the counters only.
Counters read_counters(std::span<const std::byte> bytes);

}  // namespace accord::flight
