#pragma once
// The sampler of generation, for tests against other implementations; private to the package.

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_sampling(nanobind::module_& module);

}  // namespace accord::python
