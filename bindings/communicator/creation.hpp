#pragma once
// How communicators are created: from nothing, and from others.

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "bindings/communicator/communicator.hpp"

namespace accord::python {

/// The options that a Python call gives.
CommunicatorOptions communicator_options(std::string name, nb::handle timeout, std::optional<std::string> transport,
                                         std::string select, std::string hints);

/// Adds create, from_environment, alone, join, split, split_ranks, grow, shrink, handle and reconfigure to the class.
void bind_creation(nb::class_<CommunicatorHandle>& communicator);

}  // namespace accord::python
