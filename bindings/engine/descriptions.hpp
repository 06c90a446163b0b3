#pragma once
// Descriptions of an accord.Engine: accord.TensorInfo and accord.LoadReport.

#include <nanobind/nanobind.h>

namespace accord::python {

namespace nb = nanobind;

void bind_engine_descriptions(nb::module_& module);

}  // namespace accord::python
