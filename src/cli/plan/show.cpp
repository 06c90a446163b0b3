// `accord plan show`: draws a plan in the terminal and as SVG, with its figures.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/plan/commands.hpp"
#include "cli/plan/drawing.hpp"
#include "plan/verifier.hpp"

namespace accord::cli {
namespace {

struct PlanShowOptions {
  PlanSource source;
  PlanCallText call;
  std::string svg;
  bool as_json = false;
};

void print_json(const plan::Plan& plan, const Drawing& drawing, const PlanCall& call, const PlanFigures& figures) {
  auto steps = nlohmann::ordered_json::array();
  for (const DrawnStep& step : drawing.steps) {
    steps.push_back({{"rank", step.place.rank},
                     {"lane", step.place.lane},
                     {"step", step.place.step},
                     {"column", step.column},
                     {"text", step.title}});
  }
  nlohmann::ordered_json answer = {
      {"plan", plan.name}, {"collective", to_string(plan.collective)}, {"ranks", plan.size},
      {"root", plan.root}, {"order", plan::to_string(plan.order)},     {"pacing", plan::to_string(plan.pacing)}};
  answer.update(figures_json(call, figures));
  answer["refused"] = figures.runs.message();
  answer["columns"] = drawing.columns;
  answer["drawing"] = std::move(steps);
  fmt::print("{}\n", answer.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void print_text(const plan::Plan& plan, const Drawing& drawing, const PlanCall& call, DType dtype,
                const PlanFigures& figures) {
  fmt::print("{}, order {}, paced {}\n\n{}\n{}\n", to_string(plan), plan::to_string(plan.order),
             plan.pacing == plan::Pacing::kByPlan ? "by the plan" : "by the executor", to_text(drawing),
             drawing_legend());
  fmt::print("a call with {} of {}, on the rank with the most:\n", bytes_text(call.bytes), to_string(dtype));
  fmt::print("  {} steps, of which {} follow each other between ranks; {} round{}\n", figures.cost.steps,
             figures.cost.hops, figures.rounds, figures.rounds == 1 ? "" : "s");
  fmt::print("  {} exchanged with peers, {} touched; predicted {}\n", bytes_text(figures.cost.bytes_exchanged),
             bytes_text(figures.cost.bytes_touched), time_text(figures.seconds));
  if (!figures.runs.ok()) fmt::print("  cannot run in this configuration: {}\n", figures.runs.message());
}

Status show(const plan::Plan& plan, const PlanShowOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const PlanCall call, read_plan_call(options.call, plan.collective));
  ACCORD_ASSIGN_OR_RETURN(const Drawing drawing, draw(plan));
  const PlanFigures figures = figures_of(plan, call);
  if (!options.svg.empty()) ACCORD_RETURN_IF_ERROR(write_file(options.svg, to_svg(drawing, plan)));
  if (options.as_json) {
    print_json(plan, drawing, call, figures);
  } else {
    print_text(plan, drawing, call, call.dtype, figures);
  }
  return {};
}

}  // namespace

void add_plan_show(CLI::App& plan, Action& chosen) {
  CLI::App* command = plan.add_subcommand("show", "Draw a plan, with its steps, bytes and predicted time");
  const auto options = std::make_shared<PlanShowOptions>();
  add_plan_source(*command, options->source);
  command->add_option("--bytes", options->call.bytes, "Bytes of the caller's buffer, or of one part if it is divided")
      ->capture_default_str();
  add_plan_call(*command, options->call);
  command->add_option("--svg", options->svg, "Also draw the plan in this file")->type_name("FILE");
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] {
    chosen = [options] {
      const Result<plan::Plan> loaded = read_plan_source(options->source);
      if (!loaded.ok()) return report_failure("plan show", loaded.status());
      const Status right = plan::verify(*loaded, plan::Aliasing::kOutOfPlace);
      if (!right.ok()) return plan_refused("show", right);
      const Status shown = show(*loaded, *options);
      return shown.ok() ? kSuccess : report_failure("plan show", shown);
    };
  });
}

}  // namespace accord::cli
