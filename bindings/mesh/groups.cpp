// Connected meshes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string>
#include <utility>

#include "accord/mesh.hpp"
#include "bindings/arguments/duration.hpp"
#include "bindings/communicator/communicator.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/mesh/mesh.hpp"

namespace accord::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

struct MeshHandle {
  explicit MeshHandle(Mesh made) : mesh(std::move(made)) {}
  ProcessBound<Mesh> mesh;
  Mesh& use() { return mesh.use("this mesh"); }
};

MeshHandle* create_mesh(const MeshPlan& plan, CommunicatorHandle& communicator, std::string name, nb::handle timeout,
                        bool strict) {
  const MeshOptions options{.name = std::move(name), .timeout = duration_argument(timeout), .strict = strict};
  Communicator borrowed = communicator.use();
  return new MeshHandle(value_or_raise(
      run_in_step(borrowed, [borrowed, plan, options]() mutable { return Mesh::create(plan, borrowed, options); })));
}

void decline_mesh(CommunicatorHandle& communicator, std::string why, std::string name, nb::handle timeout) {
  const MeshOptions options{.name = std::move(name), .timeout = duration_argument(timeout)};
  Communicator borrowed = communicator.use();
  raise_if_error(
      run_in_step(borrowed, [borrowed, why, options]() mutable { return Mesh::decline(borrowed, why, options); }));
}

std::optional<CommunicatorHandle> group(MeshHandle& self, std::string_view family) {
  std::optional<Communicator> made = value_or_raise(self.use().group(family));
  if (!made) return std::nullopt;
  return std::optional<CommunicatorHandle>(CommunicatorHandle(std::move(*made)));
}

nb::list report(MeshHandle& self) {
  nb::list reports;
  for (const MeshOptionReport& one : self.use().report()) {
    nb::dict dict;
    dict["key"] = one.key;
    dict["option"] = one.option;
    dict["value"] = one.value;
    dict["fate"] = std::string(to_string(one.fate));
    dict["why"] = one.why;
    reports.append(dict);
  }
  return reports;
}

}  // namespace

void bind_mesh_groups(nb::module_& module) {
  nb::class_<MeshHandle>(module, "Mesh",
                         "The groups of a plan, connected in one step. A group is created when it is first requested, "
                         "without involving other ranks.")
      .def_static(
          "create", &create_mesh, "plan"_a, "communicator"_a, nb::kw_only(), "name"_a = "mesh",
          "timeout"_a = nb::none(), "strict"_a = false,
          R"(Connects the groups. Collective over `communicator`, which is neither closed nor used for anything else.

The communicator has either one rank for each rank of the plan, or all ranks of the job. Raises Mismatch, which shows
the difference between the plans of two ranks.

strict: raises Unsupported for options that have no effect.)")
      .def_static("decline", &decline_mesh, "communicator"_a, "why"_a, nb::kw_only(), "name"_a = "mesh",
                  "timeout"_a = nb::none(),
                  "For a rank that cannot determine its plan: takes part in the create() of the other ranks, which "
                  "fails there with `why` at once.")
      .def_prop_ro("plan", [](MeshHandle& self) { return self.use().plan(); })
      .def_prop_ro(
          "rank", [](MeshHandle& self) { return self.use().rank(); }, "This rank, in the plan's numbering.")
      .def_prop_ro(
          "has_groups", [](MeshHandle& self) { return self.use().has_groups(); }, "False on ranks outside the mesh.")
      .def_prop_ro(
          "window_bytes", [](MeshHandle& self) { return self.use().window_bytes(); },
          "Bytes of address space of this rank's groups; pages use memory only once they are touched.")
      .def("group", &group, "family"_a,
           "Returns the Communicator of this rank's group of the family; None if it is in none. Families with the "
           "same ranks and options share one group.")
      .def("report", &report, "Returns what happened to each option: dicts of key, option, value, fate and why.")
      .def(
          "close",
          [](MeshHandle& self) {
            Mesh& mesh = self.use();
            const WithoutGil without_gil;
            mesh.close();
          },
          "Closes all groups that were created. Idempotent.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__",
          [](MeshHandle& self, nb::handle, nb::handle, nb::handle) {
            Mesh& mesh = self.use();
            const WithoutGil without_gil;
            mesh.close();
          },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none())
      .def("__repr__", [](MeshHandle& self) {
        return "Mesh(rank " + std::to_string(self.use().rank()) + ", " + self.use().plan().text() + ")";
      });
}

}  // namespace accord::python
