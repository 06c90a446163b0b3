#pragma once
// accord.LanguageModel and its related classes.

#include <nanobind/nanobind.h>

namespace accord::python {

void bind_language_model(nanobind::module_& module);

}  // namespace accord::python
