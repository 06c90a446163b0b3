// `accord diagnose`: reads dumps, or inspects the processes of a running job, and reports which rank waits for which.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "cli/commands.hpp"
#include "cli/diagnose/attach.hpp"
#include "cli/diagnose/diagnosis.hpp"
#include "cli/diagnose/report.hpp"
#include "cli/diagnose/trace.hpp"
#include "cli/number_checks.hpp"

namespace accord::cli {
namespace {

struct DiagnoseOptions {
  std::vector<std::string> paths;
  std::vector<int> processes;
  std::string dump_directory;
  std::string trace_file;
  bool as_json = false;
};

Result<std::vector<GroupEvidence>> evidence_of(const DiagnoseOptions& options) {
  if (!options.processes.empty()) return attach(options.processes);
  ACCORD_ASSIGN_OR_RETURN(std::vector<FlightLog> logs, read_dumps(options.paths));
  return group_by_communicator(std::move(logs));
}

Status run(const DiagnoseOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<GroupEvidence> groups, evidence_of(options));
  if (!options.dump_directory.empty()) ACCORD_RETURN_IF_ERROR(write_dumps(groups, options.dump_directory));
  if (!options.trace_file.empty()) ACCORD_RETURN_IF_ERROR(write_file(options.trace_file, to_trace(groups)));
  const std::vector<GroupDiagnosis> diagnoses = diagnose(groups);
  fmt::print("{}", options.as_json ? to_json(diagnoses) : to_text(diagnoses));
  return {};
}

int diagnose_and_tell(const DiagnoseOptions& options) {
  if (options.paths.empty() == options.processes.empty()) {
    fmt::print(stderr, "accord diagnose: name the dumps (directories or files), or processes with --pid\n");
    return kUsageError;
  }
  const Status status = run(options);
  if (status.ok()) return kSuccess;
  fmt::print(stderr, "accord diagnose: {}\n", status.message());
  return kFailure;
}

}  // namespace

void add_diagnose(CLI::App& app, Action& chosen) {
  CLI::App* diagnose = app.add_subcommand(
      "diagnose", "Show which call each rank is in and which rank it waits for, from dumps or for a running job");
  const auto options = std::make_shared<DiagnoseOptions>();
  diagnose->add_option("dumps", options->paths, "Directories or files of dumps");
  diagnose->add_option("--pid", options->processes, "A process of the job: a rank, or a launcher")
      ->check(positive_number());
  diagnose->add_option("--dump", options->dump_directory, "Also write what was found to this directory, as dumps");
  diagnose->add_option("--trace", options->trace_file, "Also write a trace of all operations, for ui.perfetto.dev");
  diagnose->add_flag("--json", options->as_json, "One JSON object");
  diagnose->callback([options, &chosen] { chosen = [options] { return diagnose_and_tell(*options); }; });
}

}  // namespace accord::cli
