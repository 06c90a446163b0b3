// `accord plan verify`: runs the proof of plan/verifier.hpp, with the caller's buffers apart and in place.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/plan/commands.hpp"
#include "plan/verifier.hpp"

namespace accord::cli {
namespace {

struct PlanVerifyOptions {
  PlanSource source;
  bool as_json = false;
};

int verify(const PlanVerifyOptions& options) {
  const Result<plan::Plan> plan = read_plan_source(options.source);
  if (!plan.ok()) return report_failure("plan verify", plan.status());
  const Status status = plan::verify_for_calls(*plan);
  if (options.as_json) {
    const nlohmann::ordered_json answer = {{"plan", plan->name},
                                           {"collective", to_string(plan->collective)},
                                           {"ranks", plan->size},
                                           {"ok", status.ok()},
                                           {"message", status.message()}};
    fmt::print("{}\n", answer.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else if (status.ok()) {
    fmt::print("{}: ok\n", to_string(*plan));
  } else {
    fmt::print("{}\n", status.message());
  }
  return status.ok() ? kSuccess : kFailure;
}

}  // namespace

void add_plan_verify(CLI::App& plan, Action& chosen) {
  CLI::App* command =
      plan.add_subcommand("verify", "Prove that a plan is correct, or name the wrong step (exit code 1)");
  const auto options = std::make_shared<PlanVerifyOptions>();
  add_plan_source(*command, options->source);
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return verify(*options); }; });
}

}  // namespace accord::cli
