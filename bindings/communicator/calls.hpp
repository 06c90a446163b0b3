#pragma once
// The calls of accord.Communicator, and the parts that they share with its other methods.

#include <nanobind/nanobind.h>

#include "bindings/arguments/duration.hpp"
#include "bindings/communicator/communicator.hpp"

namespace accord::python {

/// Adds barrier, broadcast, ... and barrier_async, broadcast_async, ... to the class, and accord.Batch, which also
/// has them.
void bind_calls(nb::module_& module, nb::class_<CommunicatorHandle>& communicator);

}  // namespace accord::python

// A piece of the methods' annotations, as in the type stub.
#define ACCORD_TIMEOUT_SIG "timeout: float | datetime.timedelta | None = None"
