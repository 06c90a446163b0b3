#pragma once
// accord._core.hash_of_pieces: how the engines of torch.compile detect weights that were changed behind their back.

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_memory_samples(nanobind::module_& module);

}  // namespace accord::python
