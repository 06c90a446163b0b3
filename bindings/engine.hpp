#pragma once
// accord.Engine and what belongs to it.

#include <nanobind/nanobind.h>

#include "accord/engine.hpp"

namespace accord::python {

void bind_engine(nanobind::module_& module);

/// The engine of an accord.Engine; TypeError if `object` is none, WrongState in a fork. REQUIRES: the GIL.
Engine engine_of(nanobind::handle object);

}  // namespace accord::python
