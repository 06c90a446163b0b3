#pragma once
// accord.Communicator.

#include <nanobind/nanobind.h>

#include "accord/communicator.hpp"
#include "bindings/interpreter/process.hpp"

namespace accord::python {

namespace nb = nanobind;

/// The contents of a Python Communicator.
struct CommunicatorHandle {
  explicit CommunicatorHandle(Communicator made) : communicator(std::move(made)) {}
  ProcessBound<Communicator> communicator;

  Communicator& use() { return communicator.use("this communicator"); }
};

void bind_communicator(nb::module_& module);

}  // namespace accord::python
