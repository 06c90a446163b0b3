#pragma once
// ShardingTrial: checks whether ranks can share a graph before there is a package.

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_sharding(nanobind::module_& module);

}  // namespace accord::python
