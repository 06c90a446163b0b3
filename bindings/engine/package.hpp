#pragma once
// accord.inspect() and accord.verify().

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_package(nanobind::module_& module);

}  // namespace accord::python
