#pragma once
// What accord.Engine tells of itself: accord.TensorInfo and accord.LoadReport.

#include <nanobind/nanobind.h>

namespace accord::python {

namespace nb = nanobind;

void bind_engine_descriptions(nb::module_& module);

}  // namespace accord::python
