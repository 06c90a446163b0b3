#pragma once
// Python's timeouts: seconds as a number, or datetime.timedelta.

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

#include "accord/store.hpp"

namespace accord::python {

/// Converts None to nullopt and infinity to a duration that never ends. Raises TypeError for other types, and
/// InvalidArgument for NaN and negative numbers.
std::optional<Duration> duration_argument(nanobind::handle value, std::string_view argument = "timeout");

}  // namespace accord::python
