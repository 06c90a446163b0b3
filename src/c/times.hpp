#pragma once
// Nanoseconds of accord.h as Durations.

#include <optional>
#include <string_view>

#include "accord/status.hpp"
#include "accord/store.hpp"

namespace accord::c {

/// A timeout that a caller may have set: 0 is the default, nullopt. kInvalidArgument, with `function`, if it is negative.
Result<std::optional<Duration>> timeout_of(std::int64_t nanoseconds, std::string_view function);

/// How long a caller waits; 0 is not at all. kInvalidArgument, with `function`, if it is negative.
Result<Duration> wait_of(std::int64_t nanoseconds, std::string_view function);

}  // namespace accord::c
