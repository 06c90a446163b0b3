#pragma once
// accord.ElasticGroup, and its part for groups of torch.

#include <nanobind/nanobind.h>

namespace accord::python {

namespace nb = nanobind;

void bind_elastic(nb::module_& module);

}  // namespace accord::python
