// Plans of meshes. Sizes are given as text or as keywords, with the same effect.
#include "bindings/mesh/mesh.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accord/mesh.hpp"
#include "base/text.hpp"
#include "bindings/arguments/integers.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

[[noreturn]] void raise_not_an_integer(const std::string& what, nb::handle value) {
  raise_invalid("mesh: " + what + " is " + nb::cast<std::string>(nb::repr(value)) + ", expected a 64-bit integer");
}

std::string setting_text(const std::string& name, nb::handle value) try {
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? "true" : "false";
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  std::string text;
  for (const std::int64_t number : integers_of(value)) {
    if (!text.empty()) text += 'x';
    text += std::to_string(number);
  }
  return text;
} catch (nb::python_error&) {
  raise_not_an_integer(name, value);
}

/// Returns the text of `name`; the error describes it as `what`.
std::string name_in(nb::handle name, const std::string& what) {
  if (!nb::isinstance<nb::str>(name))
    raise_invalid("mesh: " + what + " is " + nb::cast<std::string>(nb::repr(name)) + ", expected a str");
  return nb::cast<std::string>(name);
}

/// A bool is not accepted as a number, although Python would.
template <typename T>
T option_value(nb::handle value) {
  if (!std::is_same_v<T, bool> && nb::isinstance<nb::bool_>(value)) throw nb::cast_error();
  return nb::cast<T>(value);
}

template <typename T>
bool set_option(std::optional<T>& option, std::string_view name, std::string_view given, nb::handle value) {
  if (name != given) return false;
  if (!value.is_none()) option = option_value<T>(value);
  return true;
}

MeshGroupOptions options_of(const std::string& key, const nb::dict& given) {
  MeshGroupOptions options;
  for (const auto& [name_object, value] : given) {
    const std::string name = name_in(name_object, "the name of an option of \"" + key + "\"");
    try {
      if (set_option(options.is_high_priority_stream, "is_high_priority_stream", name, value) ||
          set_option(options.cga_cluster_size, "cga_cluster_size", name, value) ||
          set_option(options.max_ctas, "max_ctas", name, value) ||
          set_option(options.min_ctas, "min_ctas", name, value) ||
          set_option(options.net_name, "net_name", name, value) ||
          set_option(options.timeout_seconds, "timeout_seconds", name, value) ||
          set_option(options.backend, "backend", name, value))
        continue;
    } catch (const nb::cast_error&) {
      raise_invalid("mesh: options of \"" + key + "\": " + name + " is " + nb::cast<std::string>(nb::repr(value)) +
                    ", which has the wrong type");
    }
    static constexpr std::string_view kNames[] = {
        "is_high_priority_stream", "cga_cluster_size", "max_ctas", "min_ctas", "net_name",
        "timeout_seconds",         "backend"};
    raise_if_error(unknown_name("option", name, kNames).with_context("mesh: options of \"" + key + "\""));
  }
  return options;
}

MeshPlan make_plan(std::string_view sizes, int world_size, const nb::object& options, const nb::kwargs& more) {
  std::string text(sizes);
  for (const auto& [name, value] : more) {
    if (!text.empty()) text += ',';
    const auto setting = nb::cast<std::string>(name);
    text += setting + '=' + setting_text(setting, value);
  }
  MeshConfig config = value_or_raise(parse_mesh_config(text, {.world_size = world_size}));
  if (!options.is_none()) {
    if (!nb::isinstance<nb::dict>(options))
      raise_invalid("mesh: options are " + nb::cast<std::string>(nb::repr(options)) + ", expected a dict");
    for (const auto& [key, given] : nb::cast<nb::dict>(options)) {
      const std::string name = name_in(key, "a key of options");
      if (!nb::isinstance<nb::dict>(given)) raise_invalid("mesh: options of \"" + name + "\" are not a dict");
      config.options[name] = options_of(name, nb::cast<nb::dict>(given));
    }
  }
  return value_or_raise(MeshPlan::create(std::move(config)));
}

MeshPlan plan_of_axes(const nb::dict& sizes, const std::vector<std::vector<std::string>>& families, int rank_offset) {
  std::vector<MeshAxis> axes;
  for (const auto& [name_object, size] : sizes) {
    const std::string name = name_in(name_object, "the name of an axis");
    if (nb::isinstance<nb::bool_>(size)) raise_not_an_integer("axis \"" + name + "\"", size);
    std::int64_t number = 0;
    try {
      number = integer_of(size);
    } catch (nb::python_error&) {
      raise_not_an_integer("axis \"" + name + "\"", size);
    }
    const auto max = std::int64_t{std::numeric_limits<int>::max()};
    axes.push_back({name, static_cast<int>(std::clamp(number, -max, max))});
  }
  return value_or_raise(MeshPlan::of_axes(axes, families, rank_offset));
}

nb::dict options_dict(const MeshGroupOptions& options) {
  nb::dict dict;
  const auto add = [&](const char* name, const auto& value) {
    if (value) dict[name] = *value;
  };
  add("is_high_priority_stream", options.is_high_priority_stream);
  add("cga_cluster_size", options.cga_cluster_size);
  add("max_ctas", options.max_ctas);
  add("min_ctas", options.min_ctas);
  add("net_name", options.net_name);
  add("timeout_seconds", options.timeout_seconds);
  add("backend", options.backend);
  return dict;
}

int family_of(const MeshPlan& plan, std::string_view name) { return value_or_raise(plan.family(name)); }

void check_rank(const MeshPlan& plan, Rank rank) {
  const Rank first = plan.rank_offset(), last = first + plan.world_size() - 1;
  if (rank >= first && rank <= last) return;
  raise_invalid("mesh: rank " + std::to_string(rank) + " does not exist; the ranks are " + std::to_string(first) +
                " to " + std::to_string(last));
}

nb::dict axes_dict(std::span<const MeshAxis> axes) {
  nb::dict dict;
  for (const MeshAxis& axis : axes) dict[axis.name.c_str()] = axis.size;
  return dict;
}

}  // namespace

void bind_mesh(nb::module_& module) {
  nb::class_<MeshFamily>(module, "MeshFamily", "Groups of one kind: each rank is in one of them, or in none.")
      .def_ro("name", &MeshFamily::name)
      .def_ro("key", &MeshFamily::key, "Key of the options of its groups.")
      .def_ro("group_size", &MeshFamily::group_size)
      .def_ro("groups", &MeshFamily::groups, "The number of groups.")
      .def_ro("description", &MeshFamily::description)
      .def("__repr__", [](const MeshFamily& family) {
        return "MeshFamily(" + family.name + ": " + std::to_string(family.groups) + " groups of " +
               std::to_string(family.group_size) + ")";
      });
  nb::class_<MeshPlan>(module, "MeshPlan",
                       "All groups of a mesh, computed on request: MeshPlan(\"tp=8,pp=8,cp=2,ep=16\", "
                       "world_size=1024), or with keywords.")
      .def(
          "__init__",
          [](MeshPlan* self, std::string_view sizes, int world_size, const nb::object& options,
             const nb::kwargs& more) { new (self) MeshPlan(make_plan(sizes, world_size, options, more)); },
          "sizes"_a = "", "world_size"_a = 0, "options"_a = nb::none(), "more"_a,
          R"(Creates the plan of Megatron's families.

world_size: not needed if dp is given.
options: a dict of options for the keys of families, {"dp": {"max_ctas": 8}}.

Raises InvalidArgument, which says which number is invalid and why.)")
      .def_static("of_axes", &plan_of_axes, "axes"_a, "families"_a, "rank_offset"_a = 0,
                  R"(Creates a family for each element of `families`, which are lists of names of axes.

axes: a dict of sizes, beginning with the axis whose ranks are adjacent.)")
      .def_prop_ro("world_size", &MeshPlan::world_size)
      .def_prop_ro("rank_offset", &MeshPlan::rank_offset)
      .def_prop_ro(
          "families",
          [](const MeshPlan& plan) { return std::vector<MeshFamily>(plan.families().begin(), plan.families().end()); })
      .def_prop_ro(
          "axes", [](const MeshPlan& plan) { return axes_dict(plan.axes()); }, "Sizes of the axes of the dense grid.")
      .def_prop_ro("expert_axes", [](const MeshPlan& plan) { return axes_dict(plan.expert_axes()); })
      .def_prop_ro(
          "text", [](const MeshPlan& plan) { return plan.text(); }, "Everything that determines the groups.")
      .def_prop_ro("hash", &MeshPlan::hash)
      .def(
          "ranks_of",
          [](const MeshPlan& plan, std::string_view family, Rank rank) {
            check_rank(plan, rank);
            return plan.ranks_of(family_of(plan, family), rank);
          },
          "family"_a, "rank"_a, "Returns the ranks of the family's group that contains `rank`; [] if it is in none.")
      .def(
          "groups_of",
          [](const MeshPlan& plan, Rank rank) {
            check_rank(plan, rank);
            nb::list groups;
            for (const MeshGroup& group : plan.groups_of(rank)) {
              nb::list names;
              for (const int family : group.families)
                names.append(plan.families()[static_cast<std::size_t>(family)].name);
              groups.append(nb::make_tuple(names, nb::cast(group.ranks), options_dict(group.options)));
            }
            return groups;
          },
          "rank"_a, "Returns the groups of `rank`, each once: (names of families, ranks, options).")
      .def(
          "all_groups",
          [](const MeshPlan& plan, std::string_view family) { return plan.all_groups(family_of(plan, family)); },
          "family"_a, "Returns all groups of a family, in Megatron's order.")
      .def(
          "coordinate",
          [](const MeshPlan& plan, std::string_view axis, Rank rank) {
            check_rank(plan, rank);
            return value_or_raise(plan.coordinate(axis, rank));
          },
          "axis"_a, "rank"_a,
          "Returns the position of `rank` along an axis; \"etp\", \"egtp\" and \"edp\" are axes of the grid of "
          "experts.")
      .def("__eq__", [](const MeshPlan& a, const MeshPlan& b) { return a.text() == b.text(); })
      .def("__hash__", &MeshPlan::hash)
      .def("__repr__", [](const MeshPlan& plan) { return "MeshPlan(" + plan.text() + ")"; });
}

}  // namespace accord::python
