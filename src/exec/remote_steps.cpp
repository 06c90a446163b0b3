// A copy with a second destination becomes two steps, since only one of them may be remote.
#include "exec/remote_steps.hpp"

#include <fmt/format.h>

#include <utility>

namespace accord::exec {
namespace {

class Routing {
 public:
  Routing(LoweredPlan& plan, const Domain& domain, std::string_view name) : plan_(plan), domain_(domain), name_(name) {}

  Status run() {
    for (auto& lane : plan_.lanes) {
      std::vector<LoweredStep> routed;
      for (LoweredStep& step : lane) ACCORD_RETURN_IF_ERROR(route(step, routed));
      lane = std::move(routed);
    }
    return {};
  }

 private:
  bool is_remote(const Operand& operand) const { return operand.is_shared() && domain_.is_remote(operand.member()); }

  Status refuse(const Operand& operand) const {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("plan \"{}\" reads or adds in the memory of member {}, which is on another host; between hosts "
                    "a plan has to put (docs/algorithms.md says which do)",
                    name_, operand.member()));
  }

  Status route(LoweredStep& step, std::vector<LoweredStep>& routed) const {
    for (std::uint16_t i = 0; i < step.sources; ++i) {
      const Operand& source = plan_.operands[step.first_source + i];
      if (is_remote(source)) return refuse(source);
    }
    const bool second = step.has_mirror && is_remote(step.mirror);
    switch (step.opcode) {
      case Opcode::kCopy:
        if (step.has_mirror && (second || is_remote(step.destination))) {
          LoweredStep other = step;
          other.destination = step.mirror;
          step.has_mirror = other.has_mirror = false;
          ACCORD_RETURN_IF_ERROR(route(step, routed));
          return route(other, routed);
        }
        if (is_remote(step.destination)) step.opcode = Opcode::kPutRemote;
        break;
      case Opcode::kSignal:
        if (is_remote(step.destination)) step.opcode = Opcode::kSignalRemote;
        break;
      case Opcode::kPutPackets:
        if (is_remote(step.destination)) step.opcode = Opcode::kPutPacketsRemote;
        break;
      case Opcode::kReducePartials:
        if (step.sources == 1 && !step.has_mirror && is_remote(step.destination)) {
          step.opcode = Opcode::kPutRemote;
          break;
        }
        [[fallthrough]];
      default:
        if (is_remote(step.destination)) return refuse(step.destination);
        if (second) return refuse(step.mirror);
    }
    routed.push_back(step);
    return {};
  }

  LoweredPlan& plan_;
  const Domain& domain_;
  std::string_view name_;
};

}  // namespace

Status route_remote_steps(LoweredPlan& plan, const Domain& domain, std::string_view plan_name) {
  if (!domain.has_remotes()) return {};
  return Routing(plan, domain, plan_name).run();
}

}  // namespace accord::exec
