#pragma once
// The calls of accord.Communicator, and what they share with its other methods.

#include <nanobind/nanobind.h>

#include "communicator.hpp"
#include "duration.hpp"

namespace accord::python {

/// Adds barrier, broadcast, ... and barrier_async, broadcast_async, ... to the class, and accord.Batch, which has them, too.
void bind_calls(nb::module_& module, nb::class_<CommunicatorHandle>& communicator);

}  // namespace accord::python

// A piece of the methods' annotations, as the type stub gives them.
#define ACCORD_TIMEOUT_SIG "timeout: float | datetime.timedelta | None = None"
