#pragma once
// Paths as arguments: str, pathlib.Path, or any object that os.fspath() converts to a str.

#include <nanobind/nanobind.h>

#include <string>

#include "status.hpp"

namespace accord::python {

inline std::string path_argument(nanobind::handle path) {
  const nanobind::object text = nanobind::module_::import_("os").attr("fspath")(path);
  if (!nanobind::isinstance<nanobind::str>(text)) throw nanobind::type_error("a path is expected as str, got bytes");
  std::string made = nanobind::cast<std::string>(text);
  if (made.find('\0') != std::string::npos)
    raise_invalid("a path ends at its null byte: " + nanobind::cast<std::string>(nanobind::repr(text)));
  return made;
}

}  // namespace accord::python
