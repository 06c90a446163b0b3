#pragma once
// Paths as arguments: str, pathlib.Path, or any object that os.fspath() converts to a str.

#include <nanobind/nanobind.h>

#include <string>

#include "bindings/interpreter/status.hpp"

namespace accord::python {

inline std::string path_argument(nanobind::handle path) {
  const nanobind::object text = nanobind::module_::import_("os").attr("fspath")(path);
  if (!nanobind::isinstance<nanobind::str>(text)) throw nanobind::type_error("expected a path as str, got bytes");
  std::string path_text = nanobind::cast<std::string>(text);
  if (path_text.find('\0') != std::string::npos)
    raise_invalid("the path contains a null byte: " + nanobind::cast<std::string>(nanobind::repr(text)));
  return path_text;
}

}  // namespace accord::python
