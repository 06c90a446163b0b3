#pragma once
// Packs weights into the layout of matrix products, for the exporter: accord._core.pack_matrix().

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_packing(nanobind::module_& module);

}  // namespace accord::python
