#pragma once
// accord.Engine and what belongs to it.

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_engine(nanobind::module_& module);

}  // namespace accord::python
