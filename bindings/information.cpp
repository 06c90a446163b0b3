// The JSON of `accord info --json`, parsed by Python's own parser.
#include "bindings/information.hpp"

#include <string>

#include "accord/info.hpp"
#include "bindings/interpreter/gil.hpp"

namespace accord::python {

namespace nb = nanobind;

void bind_information(nb::module_& module) {
  module.attr("__version__") = nb::str(version().data(), version().size());
  module.def(
      "info",
      [] {
        std::string json;
        {
          const WithoutGil without_gil;
          json = to_json(info());
        }
        return nb::module_::import_("json").attr("loads")(nb::str(json.data(), json.size()));
      },
      nb::sig("def info() -> dict[str, typing.Any]"),
      R"(Returns what this build and this machine have, as the dict that `accord info --json` prints.

It lists versions, the instruction set, processors, transports, parts, and why each missing part is unavailable.)");
}

}  // namespace accord::python
