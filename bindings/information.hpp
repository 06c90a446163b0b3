#pragma once
// accord.info().

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_information(nanobind::module_& module);

}  // namespace accord::python
