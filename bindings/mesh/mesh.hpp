#pragma once
// The mesh classes of accord._core.

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_mesh(nanobind::module_& module);
void bind_mesh_groups(nanobind::module_& module);

}  // namespace accord::python
