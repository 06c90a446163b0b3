// Plans as text: the functions of accord/plan.hpp, for python/accord/plan.py.
#include "accord/plan.hpp"

#include <nanobind/stl/pair.h>

#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/plan.hpp"
#include "plan/collective.hpp"
#include "plan/step_rules.hpp"

namespace accord::python {

namespace nb = nanobind;
using namespace nb::literals;

void bind_plans(nb::module_& module) {
  module.def(
      "register_plan",
      [](std::string_view json, std::string name, std::string bytes) {
        Status status;
        {
          const WithoutGil without_gil;
          status = register_plan(json, {.name = std::move(name), .bytes = std::move(bytes)});
        }
        raise_if_error(status);
      },
      "json"_a, "name"_a, "bytes"_a, "See accord.plan.register.");
  module.def(
      "verify_plan",
      [](std::string_view json) {
        Status status;
        {
          const WithoutGil without_gil;
          status = verify_plan(json);
        }
        raise_if_error(status);
      },
      "json"_a, "See accord.plan.verify.");
  module.def(
      "import_mscclpp_plan",
      [](std::string_view json, bool without_switch) {
        Result<std::string> plan = std::string();
        {
          const WithoutGil without_gil;
          plan = import_mscclpp_plan(json, without_switch ? SwitchOps::kOrdinary : SwitchOps::kMulticast);
        }
        return value_or_raise(std::move(plan));
      },
      "json"_a, "without_switch"_a, "See accord.plan.import_mscclpp.");
  module.def(
      "parts_of_buffers",
      [](std::string_view collective, int ranks) {
        const plan::CollectiveTraits& traits = plan::traits_of(value_or_raise(collective_from_string(collective)));
        if (ranks < 1 || ranks > plan::kMaxSize)
          raise_invalid("ranks: a plan has 1 to " + std::to_string(plan::kMaxSize) + " ranks, not " +
                        std::to_string(ranks));
        const auto parts = [&](const plan::BufferRole& role) {
          return role.holders == plan::Holders::kNobody ? 0 : role.divided ? ranks : 1;
        };
        return std::pair(parts(traits.input), parts(traits.output));
      },
      "collective"_a, "ranks"_a,
      "Returns the number of parts into which the collective divides input and output among the ranks.");
}

}  // namespace accord::python
