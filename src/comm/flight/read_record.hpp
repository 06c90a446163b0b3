#pragma once
// Reads a record while it is written, by this process or another.

#include <cstddef>
#include <optional>
#include <span>

#include "base/ticks.hpp"
#include "comm/flight/flight_log.hpp"

namespace accord::comm::flight {

/// How the ticks of a record become time: a moment of its process's start, and what they are.
struct Timebase {
  TickSource source = TickSource::kMonotonic;
  Moment start;
};

/// Reads the record that `bytes` begin with. nullopt if there is no communicator in it (any more). kCorrupt if it is none: nothing
/// in it is trusted, but for its bytes being there to read. An operation that is being written is left out.
Result<std::optional<FlightLog>> read_record(std::span<const std::byte> bytes, const Timebase& time);

/// Counters alone.
Counters read_counters(std::span<const std::byte> bytes);

}  // namespace accord::comm::flight
