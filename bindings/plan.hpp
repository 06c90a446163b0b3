#pragma once
#include <nanobind/nanobind.h>

namespace accord::python {

/// Adds the functions behind accord.plan to `module`.
void bind_plans(nanobind::module_& module);

}  // namespace accord::python
