#pragma once
// Converts the nanoseconds of accord.h to Durations.

#include <optional>
#include <string_view>

#include "accord/status.hpp"
#include "accord/store.hpp"

namespace accord::c {

/// Converts an optional timeout: 0 is the default, nullopt. A negative value fails with kInvalidArgument, with
/// `function` and the argument's name.
Result<std::optional<Duration>> timeout_of(std::int64_t nanoseconds, std::string_view function,
                                           std::string_view argument = "timeout_ns");

/// Converts the time that a caller waits; 0 does not wait. A negative value fails with kInvalidArgument, with
/// `function` and the argument's name.
Result<Duration> wait_of(std::int64_t nanoseconds, std::string_view function, std::string_view argument = "timeout_ns");

}  // namespace accord::c
