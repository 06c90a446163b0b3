// `accord plan export`: writes the plan of an algorithm or of a file as the JSON of docs/plan-format.md.
#include <memory>
#include <string>

#include "cli/plan/commands.hpp"

namespace accord::cli {

void add_plan_export(CLI::App& plan, Action& chosen) {
  struct Options {
    PlanSource source;
    std::string output;
  };
  CLI::App* command = plan.add_subcommand("export", "Write a plan as JSON (docs/plan-format.md)");
  const auto options = std::make_shared<Options>();
  add_plan_source(*command, options->source);
  command->add_option("-o,--output", options->output, "The file [standard output]")->type_name("FILE");
  command->callback([options, &chosen] {
    chosen = [options] {
      const Result<plan::Plan> loaded = read_plan_source(options->source);
      return loaded.ok() ? write_plan("export", *loaded, options->output)
                         : report_failure("plan export", loaded.status());
    };
  });
}

}  // namespace accord::cli
