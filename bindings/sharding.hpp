#pragma once
// ShardingTrial: whether ranks can share a graph, asked before there is a package.

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_sharding(nanobind::module_& module);

}  // namespace accord::python
