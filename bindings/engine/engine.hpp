#pragma once
// accord.Engine and its related classes.

#include <nanobind/nanobind.h>

#include "accord/engine.hpp"

namespace accord::python {

void bind_engine(nanobind::module_& module);

/// Returns the engine of an accord.Engine. Raises TypeError if `object` is not one, WrongState in a forked child.
/// REQUIRES: the GIL.
Engine engine_of(nanobind::handle object);

}  // namespace accord::python
