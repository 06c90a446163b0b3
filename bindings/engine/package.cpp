// The JSON of `accord engine inspect --json`, parsed by Python's own parser, and the list of `accord engine verify`.
#include "bindings/engine/package.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "accord/package.hpp"
#include "bindings/arguments/path.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"
#include "engine/runtime/loaded_engine.hpp"

namespace accord::python {
namespace {

nb::object inspect(nb::handle path) {
  const std::string json =
      value_or_raise(run_interruptibly([file = path_argument(path)] { return inspect_package(file); }));
  return nb::module_::import_("json").attr("loads")(nb::str(json.data(), json.size()));
}

std::vector<Damage> verify(nb::handle path) {
  return value_or_raise(run_interruptibly([file = path_argument(path)] { return verify_package(file); }));
}

void check_loads(nb::handle path, const std::map<std::string, std::pair<int, int>>& groups) {
  std::map<std::string, GroupPlace> places;
  for (const auto& [name, place] : groups) places[name] = {place.first, place.second};
  raise_if_error(run_interruptibly(
      [file = path_argument(path), places] { return engine::LoadedEngine::check_loads(file, places); }));
}

}  // namespace

void bind_package(nb::module_& module) {
  nb::class_<Damage>(module, "Damage", "One damaged place of an engine package.")
      .def_ro("file", &Damage::file, "Path of the file inside the package.")
      .def_ro("what", &Damage::what, "What is wrong there.")
      .def("__repr__", [](const Damage& self) { return "Damage(" + self.file + ": " + self.what + ")"; });
  module.def("inspect", &inspect, nb::arg("path"),
             nb::sig("def inspect(path: str | os.PathLike[str]) -> dict[str, typing.Any]"),
             R"(Describes the engine package at `path`, as the dict that `accord engine inspect --json` prints.

It lists inputs, outputs, sharding rules, ops, and the weight bytes of a rank. Reads no weights. Raises NotFound,
Corrupt, Unsupported.)");
  module.def("verify", &verify, nb::arg("path"), nb::sig("def verify(path: str | os.PathLike[str]) -> list[Damage]"),
             R"(Reads every byte of the engine package at `path` and lists all damage.

The list is empty if the package is intact. Raises NotFound if there is no package.)");
  module.def(
      "check_loads", &check_loads, nb::arg("path"), nb::arg("groups") = nb::dict(),
      nb::sig(
          "def check_loads(path: str | os.PathLike[str], groups: collections.abc.Mapping[str, tuple[int, int]] = {}) "
          "-> None"),
      R"(Checks that Engine.load() would succeed on the CPU for the package at `path`, without reading weights.

Does everything that Engine.load() does for one place (rank, size) in each of the package's groups, except reading
weights, and raises the same errors: Unsupported (names the op and its place in the model), Corrupt,
InvalidArgument.)");
}

}  // namespace accord::python
