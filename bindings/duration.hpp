#pragma once
// Python's timeouts: seconds as a number, or datetime.timedelta.

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

#include "accord/store.hpp"

namespace accord::python {

/// None gives nullopt; infinity a duration that never ends. TypeError for other types, InvalidArgument for NaN and negative.
std::optional<Duration> duration_argument(nanobind::handle value, std::string_view argument = "timeout");

}  // namespace accord::python
