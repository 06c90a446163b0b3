#pragma once
// Paths as arguments: str, pathlib.Path, whatever os.fspath() takes.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace accord::python {

inline std::string path_argument(nanobind::handle path) {
  return nanobind::cast<std::string>(nanobind::module_::import_("os").attr("fspath")(path));
}

}  // namespace accord::python
