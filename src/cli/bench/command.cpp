// `accord bench`: a sweep over sizes for each requested operation. All ranks run this; rank 0 prints. Each contender
// is a communicator with a selection table of its own. All contenders are measured at one size, in turns, before the
// next size.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/bench/meter.hpp"
#include "cli/bench/report.hpp"
#include "cli/bench/serve.hpp"
#include "cli/command_ranks.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/progress_line.hpp"
#include "comm/internal.hpp"
#include "plan/collective.hpp"
#include "plan/selector.hpp"
#include "topology/processor.hpp"
#include "topology/topology.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 40;

struct BenchOptions {
  std::vector<std::string> operations;
  bool all = false;
  int ranks = 0;  // 0: not given
  std::string min_size = "8";
  std::string max_size = "64M";
  int factor = 2;
  std::string dtype = "float32";
  std::string op = "sum";
  double seconds = Effort().seconds;
  int calls = 0;  // 0: limited by time
  std::vector<std::string> algorithms;
  std::string select;
  bool in_place = false;
  std::string json;
  std::string plot;
};

// The same options, parsed and checked.
struct Sweep {
  std::vector<const BenchOperation*> operations;
  std::vector<std::size_t> sizes;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Effort effort;
  bool in_place = false;
  std::vector<std::string> algorithms;
  std::string select;
};

Result<std::vector<const BenchOperation*>> operations_of(const BenchOptions& options) {
  std::vector<const BenchOperation*> chosen;
  for (const std::string& name : options.operations) {
    ACCORD_ASSIGN_OR_RETURN(const BenchOperation* operation, bench_operation(name));
    chosen.push_back(operation);
  }
  if (options.all && !chosen.empty())
    return Status(StatusCode::kInvalidArgument,
                  "--all means every operation; name some operations or give --all, not both");
  if (options.all)
    for (const BenchOperation& operation : bench_operations()) chosen.push_back(&operation);
  if (chosen.empty())
    return Status(StatusCode::kInvalidArgument, "no operation was given; name some (all_reduce) or give --all");
  return chosen;
}

Result<std::vector<std::size_t>> sizes_of(const BenchOptions& options, DType dtype) {
  ACCORD_ASSIGN_OR_RETURN(const std::size_t min_size, parse_bytes(options.min_size));
  ACCORD_ASSIGN_OR_RETURN(const std::size_t max_size, parse_bytes(options.max_size));
  const std::size_t element = size_of(dtype);
  if (min_size == 0 || min_size > max_size || max_size > kMaxBytes)
    return Status(StatusCode::kInvalidArgument, fmt::format("the range of sizes from {} to {} is empty or invalid",
                                                            options.min_size, options.max_size));
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = min_size; bytes <= max_size; bytes *= static_cast<std::size_t>(options.factor)) {
    const std::size_t whole = std::max(bytes / element, std::size_t{1}) * element;
    if (sizes.empty() || sizes.back() != whole) sizes.push_back(whole);
  }
  return sizes;
}

// Fails if --json and --plot name outputs that cannot both be written.
Status check_outputs(const BenchOptions& options) {
  if (options.plot == "-")
    return {StatusCode::kInvalidArgument, "--plot writes a file; standard output is for --json alone"};
  if (options.json.empty() || options.plot.empty() || options.json == "-") return {};
  std::error_code ignored;
  const auto whole = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path), ignored);
  };
  if (whole(options.json) != whole(options.plot)) return {};
  return {StatusCode::kInvalidArgument, fmt::format("--json and --plot cannot both write {}", options.json)};
}

Result<Sweep> sweep_of(const BenchOptions& options) {
  ACCORD_RETURN_IF_ERROR(check_outputs(options));
  Sweep sweep{.operations = {}, .sizes = {}, .effort = {}, .algorithms = options.algorithms, .select = options.select};
  ACCORD_ASSIGN_OR_RETURN(sweep.operations, operations_of(options));
  ACCORD_ASSIGN_OR_RETURN(sweep.dtype, dtype_from_string(options.dtype));
  ACCORD_ASSIGN_OR_RETURN(sweep.op, reduce_op_from_string(options.op));
  ACCORD_ASSIGN_OR_RETURN(sweep.sizes, sizes_of(options, sweep.dtype));
  if (!is_defined(sweep.op, sweep.dtype))
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} has no meaning for {}", to_string(sweep.op), to_string(sweep.dtype)));
  const Status table = plan::parse_table(options.select).status();
  if (!table.ok()) return table.with_context("--select");
  sweep.effort.seconds = options.seconds;
  if (options.calls > 0) sweep.effort.calls = options.calls;
  sweep.in_place = options.in_place;
  for (const std::string& algorithm : options.algorithms)
    for (const BenchOperation* operation : sweep.operations) {
      const std::string rule = fmt::format("{}:0-inf={}", to_string(operation->collective), algorithm);
      const Status known = plan::parse_table(rule).status();
      if (!known.ok()) return known.with_context("--algorithm");
    }
  return sweep;
}

// One contender for each algorithm that was named, or the default selection alone.
Result<std::vector<Contender>> contenders_for(const CommandRanks& ranks, const Sweep& sweep,
                                              const BenchOperation& operation) {
  std::vector<Contender> contenders;
  std::vector<std::string> names = sweep.algorithms;
  if (names.empty()) names.emplace_back("default");
  for (const std::string& name : names) {
    std::string table = sweep.select;
    if (!sweep.algorithms.empty())
      table += fmt::format("{}{}:0-inf={}", table.empty() ? "" : ";", to_string(operation.collective), name);
    ACCORD_ASSIGN_OR_RETURN(Communicator comm,
                            ranks.communicator(fmt::format("bench {} {}", operation.name, name), table));
    contenders.push_back({name, std::move(comm)});
  }
  return contenders;
}

// REQUIRES: this process is not yet bound to a share of the cores.
BenchReport empty_report(const Sweep& sweep) {
  BenchReport report;
  const Result<topology::Place> place = topology::this_place();
  report.cores = place.ok() ? place->cores : 1;
  report.processor = topology::processor_name();
  report.dtype = sweep.dtype;
  report.op = sweep.op;
  report.in_place = sweep.in_place;
  return report;
}

// The results so far. The thread that ends the command after an interrupt reads them too.
struct Results {
  std::mutex mutex;
  BenchReport report;
};

// Prints progress and results on rank 0.
class Screen {
 public:
  Screen(bool prints, bool prints_table) : prints_table_(prints && prints_table), line_(prints) {}

  void text(const std::string& text) {
    clear();
    if (!prints_table_) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  }
  void progress(const std::string& what) { line_.show(what); }
  void clear() { line_.clear(); }

 private:
  bool prints_table_;
  ProgressLine line_;
};

Status measure_all(const CommandRanks& ranks, const Sweep& sweep, const InterruptWatch& watch, Screen& screen,
                   Results& results) {
  BenchReport& report = results.report;
  ACCORD_ASSIGN_OR_RETURN(const Communicator control, ranks.communicator("bench control"));
  Meter meter(control, watch);
  screen.text(report_head(report));
  for (const BenchOperation* operation : sweep.operations) {
    if (operation->traffic != Traffic::kCollective && ranks.size() < 2)
      return Status(StatusCode::kInvalidArgument, fmt::format("{} requires two ranks", operation->name));
    ACCORD_ASSIGN_OR_RETURN(std::vector<Contender> contenders, contenders_for(ranks, sweep, *operation));
    screen.text(operation_text(report, *operation));
    const bool sized = operation->collective != Collective::kBarrier;
    for (const std::size_t bytes : sized ? sweep.sizes : std::vector<std::size_t>{0}) {
      screen.progress(fmt::format("{} of {}", operation->name, bytes_text(bytes)));
      const ExerciseRequest request{.operation = *operation,
                                    .bytes = bytes,
                                    .dtype = sweep.dtype,
                                    .op = sweep.op,
                                    .in_place = sweep.in_place,
                                    .ranks = ranks.size()};
      ACCORD_ASSIGN_OR_RETURN(auto measured, meter.measure(request, sweep.effort, contenders));
      const std::lock_guard lock(results.mutex);
      report.interrupted = !measured.has_value();
      if (report.interrupted) return {};
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        report.rows.push_back({operation, bytes, contenders[i].name, std::move((*measured)[i])});
        screen.text(row_text(report, report.rows.back()));
      }
    }
  }
  return {};
}

Status write_results(const BenchOptions& options, const BenchReport& report) {
  if (!options.json.empty()) {
    const std::string text =
        to_json(report).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (options.json == "-") fmt::print("{}", text);
    if (options.json != "-") ACCORD_RETURN_IF_ERROR(write_file(options.json, text));
  }
  return options.plot.empty() ? Status() : write_file(options.plot, to_svg(report, chart_title(report)));
}

// Returns ok, or an error for the first wrong result.
Status check_results(const BenchReport& report) {
  for (const BenchRow& row : report.rows) {
    if (row.measured.wrong == 0) continue;
    return {StatusCode::kInternal,
            fmt::format("{} of {} by {} produced {} wrong elements; the first is at {}", row.operation->name,
                        bytes_text(row.bytes), row.measured.algorithm, row.measured.wrong, row.measured.first_wrong)};
  }
  return {};
}

// Prints one line that says how much was measured and where the results are.
void report_interrupted(const BenchOptions& options, const BenchReport& report) {
  std::string summary = report.rows.empty()       ? "nothing was measured before"
                        : report.rows.size() == 1 ? "1 result was measured before"
                                                  : fmt::format("{} results were measured before", report.rows.size());
  for (const std::string& file : {options.json, options.plot})
    if (!file.empty() && file != "-") summary += fmt::format(", see {}", file);
  fmt::print(stderr, "accord bench: interrupted; {}\n", summary);
}

Status bench(const BenchOptions& options, const Sweep& sweep, Results& results) {
  // Check now, so that an hour of measurements is not lost at the end.
  ACCORD_ASSIGN_OR_RETURN(const comm::JobPlace place, comm::job_place(process_environment()));
  for (const std::string& file : {options.json, options.plot})
    if (place.rank == 0 && !file.empty() && file != "-") ACCORD_RETURN_IF_ERROR(check_writable(file));
  const InterruptWatch watch;
  BenchReport& report = results.report;
  report = empty_report(sweep);
  ACCORD_ASSIGN_OR_RETURN(
      const CommandRanks ranks,
      CommandRanks::create(options.ranks > 0 ? std::optional(options.ranks) : std::nullopt, kDefaultRanks));
  report.ranks = ranks.size();
  const bool is_printer = ranks.rank() == 0;
  Screen screen(is_printer, options.json != "-");
  Status measured;
  {
    const InterruptDeadline deadline(ranks.rank(), [&] {
      const std::lock_guard lock(results.mutex);
      report.interrupted = true;
      screen.clear();
      if (const Status written = write_results(options, report); !written.ok())
        fmt::print(stderr, "accord bench: {}\n", written.to_string());
      report_interrupted(options, report);
    });
    measured = measure_all(ranks, sweep, watch, screen, results);
  }
  screen.clear();
  // After an interrupt the other ranks may have ended first, which fails the calls of this one.
  if (!measured.ok() && watch.interrupted()) {
    report.interrupted = true;
    measured = Status();
  }
  // Results measured before a failure are still valid.
  if (is_printer && (measured.ok() || !report.rows.empty())) ACCORD_RETURN_IF_ERROR(write_results(options, report));
  ACCORD_RETURN_IF_ERROR(measured);
  if (is_printer && report.interrupted) report_interrupted(options, report);
  return check_results(report);
}

int run(const BenchOptions& options) {
  const Result<Sweep> sweep = sweep_of(options);
  Results results;
  const Status status = sweep.ok() ? bench(options, *sweep, results) : sweep.status();
  if (status.ok()) return results.report.interrupted ? kInterrupted : kSuccess;
  return report_failure("bench", status);
}

}  // namespace

void add_bench(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("bench", "Measure collectives and messages over a range of sizes");
  const auto options = std::make_shared<BenchOptions>();
  command->add_option("operations", options->operations, "all_reduce, ..., send_recv, send_recv_bandwidth, ...");
  command->add_flag("--all", options->all, "Every operation");
  command->add_option("-n,--ranks", options->ranks, "Ranks to start here; under a launcher, its ranks are used [2]")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--min", options->min_size,
                   "Smallest size: bytes of the caller's buffer, or of one part if it is divided")
      ->capture_default_str();
  command->add_option("--max", options->max_size, "Largest size")->capture_default_str();
  command->add_option("--factor", options->factor, "Factor from one size to the next")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Dtype of the elements")->capture_default_str();
  command->add_option("--op", options->op, "Op of the collectives that reduce")->capture_default_str();
  command->add_option("--seconds", options->seconds, "Time for each size")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  command->add_option("--iterations", options->calls, "Calls of each size, instead of a time")
      ->check(CLI::Range(1, 1000000000));
  command->add_option("--algorithm", options->algorithms,
                      "Use this algorithm for all sizes (NAME or NAME@SLOT); several are measured in turns");
  command->add_option("--select", options->select, "A selection table, read after ACCORD_SELECT");
  command->add_flag("--in-place", options->in_place, "Input and output in the same memory");
  command->add_option("--json", options->json, "Write the results as JSON; - is standard output, without the table")
      ->type_name("FILE");
  command->add_option("--plot", options->plot, "Draw time and bandwidth over size, as SVG")->type_name("FILE");
  add_bench_serve(*command, chosen);
  command->callback([command, options, &chosen] {
    if (command->get_subcommands().empty()) chosen = [options] { return run(*options); };
  });
}

}  // namespace accord::cli
