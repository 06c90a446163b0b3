#pragma once
// Weights in the layout of products, for the exporter: accord._core.pack_matrix().

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_packing(nanobind::module_& module);

}  // namespace accord::python
