// `accord plan import`: converts an execution plan of MSCCL++ to a plan of accord, and verifies it.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/fd.hpp"
#include "cli/plan/commands.hpp"
#include "plan/mscclpp.hpp"

namespace accord::cli {
namespace {

struct PlanImportOptions {
  std::string input;
  std::string output;
  std::string name;
  bool without_switch = false;
};

int import_plan(const PlanImportOptions& options) {
  const Result<std::string> text = read_file(options.input);
  if (!text.ok()) return report_failure("plan import", text.status());
  Result<plan::Plan> imported =
      plan::import_mscclpp(*text, options.without_switch ? SwitchOps::kOrdinary : SwitchOps::kMulticast);
  if (!imported.ok()) {
    fmt::print(stderr, "accord plan import: {}: {}\n", options.input, imported.status().to_string());
    return kFailure;
  }
  if (!options.name.empty()) imported->name = options.name;
  return write_plan("import", *imported, options.output);
}

}  // namespace

void add_plan_import(CLI::App& plan, Action& chosen) {
  CLI::App* command = plan.add_subcommand("import", "Convert an execution plan of MSCCL++ (JSON) to a plan");
  const auto options = std::make_shared<PlanImportOptions>();
  command->add_option("file", options->input, "The execution plan")->required()->type_name("FILE");
  command->add_option("-o,--output", options->output, "The file [standard output]")->type_name("FILE");
  command->add_option("--name", options->name, "The plan's name [that of the execution plan]");
  command->add_flag("--without-switch", options->without_switch,
                    "Convert ops that use a switch between GPUs to copies and sums, which run anywhere");
  command->callback([options, &chosen] { chosen = [options] { return import_plan(*options); }; });
}

}  // namespace accord::cli
