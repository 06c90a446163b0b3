#pragma once
// How communicators are created: from nothing, and from others.

#include <nanobind/nanobind.h>

#include "bindings/communicator/communicator.hpp"

namespace accord::python {

/// Adds create, from_environment, alone, join, split, split_ranks, grow, shrink, handle and reconfigure to the class.
void bind_creation(nb::class_<CommunicatorHandle>& communicator);

}  // namespace accord::python
