#pragma once
// accord.ExpertGroup and accord.ExpertHandle.

#include <nanobind/nanobind.h>

namespace accord::python {

namespace nb = nanobind;

void bind_experts(nb::module_& module);

}  // namespace accord::python
