// `accord tune`: measures all candidates of a collective, one size after the other. A short survey of all of them comes
// first. Candidates that take at most 1.5 times as long as the best then go through the rounds that count, in turns
// with the default. A candidate that wins by more than noise becomes a rule. Rank 0 keeps the results and decides
// which sizes are still to be measured; the others are notified.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "accord/info.hpp"
#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/bench/meter.hpp"
#include "cli/command_ranks.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/progress_line.hpp"
#include "cli/tune/candidates.hpp"
#include "cli/tune/kept_results.hpp"
#include "cli/tune/report.hpp"
#include "cli/tune/simulated.hpp"
#include "cli/tune/winners.hpp"
#include "comm/internal.hpp"
#include "plan/step_rules.hpp"
#include "plan/tuning.hpp"
#include "topology/processor.hpp"
#include "topology/topology.hpp"

namespace accord::cli {
namespace {

constexpr double kRaceCutoff = 1.5;  // times the best, after the survey
constexpr std::size_t kMaxFinalists = 4;
constexpr int kMostRanksHere = 1024;

struct TuneOptions {
  std::vector<std::string> collectives;
  int ranks = 0;  // 0: not given
  TuneOutput output{.table = "accord.table"};
  std::string min_size = "8";
  std::string max_size = "64M";
  double seconds = 0.1;
  bool quick = false;
  bool fresh = false;
  std::string machine;  // simulate it
};

// The same options, parsed and checked.
struct Task {
  std::vector<const BenchOperation*> operations;
  std::vector<std::size_t> sizes;
  Effort survey_effort{.seconds = 0.02, .rounds = 3};
  Effort race_effort{.seconds = 0.1, .rounds = 7};
  plan::TuningFacts facts;
  TuneOutput output;
  std::string effort;  // in words, stored with the results
  bool fresh = false;
};

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc = {};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

Result<std::vector<const BenchOperation*>> operations_of(const TuneOptions& options) {
  std::vector<const BenchOperation*> operations;
  for (const BenchOperation& operation : bench_operations()) {
    const bool is_collective = to_string(operation.collective) == operation.name;
    if (is_collective && options.collectives.empty()) operations.push_back(&operation);
  }
  for (const std::string& name : options.collectives) {
    ACCORD_ASSIGN_OR_RETURN(const Collective collective, collective_from_string(name));
    ACCORD_ASSIGN_OR_RETURN(const BenchOperation* operation, bench_operation(to_string(collective)));
    operations.push_back(operation);
  }
  return operations;
}

Status check_ranks(const TuneOptions& options) {
  if (options.ranks <= kMostRanksHere || !options.machine.empty()) return {};
  return {StatusCode::kInvalidArgument, fmt::format("--ranks: {} ranks are more than the {} that can be started here",
                                                    options.ranks, kMostRanksHere)};
}

// REQUIRES: this process is not yet bound to a share of the cores.
Result<Task> task_of(const TuneOptions& options) {
  Task task;
  ACCORD_RETURN_IF_ERROR(check_ranks(options));
  ACCORD_RETURN_IF_ERROR(config().status());
  if (!config()->select.empty())
    return Status(StatusCode::kInvalidArgument, "tuning starts from the default selection; unset ACCORD_SELECT");
  for (const auto& [option, file] : {std::pair("--output", &options.output.table), {"--plot", &options.output.plot}})
    if (*file == "-" || (file->empty() && file == &options.output.table))
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} must be a file; the results are printed on standard output in any case", option));
  ACCORD_ASSIGN_OR_RETURN(task.operations, operations_of(options));
  ACCORD_ASSIGN_OR_RETURN(const std::size_t min_size, parse_bytes(options.min_size));
  ACCORD_ASSIGN_OR_RETURN(const std::size_t max_size, parse_bytes(options.max_size));
  if (min_size < 8 || min_size > max_size || max_size > std::size_t{1} << 32)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("sizes must be from 8 to 4g, not from {} to {}", options.min_size, options.max_size));
  const std::size_t factor = options.quick ? 16 : 4;
  for (std::size_t bytes = min_size / 8 * 8; bytes <= max_size; bytes *= factor) task.sizes.push_back(bytes);
  task.race_effort.seconds = options.quick ? options.seconds / 4 : options.seconds;
  task.survey_effort.seconds = task.race_effort.seconds / 5;
  ACCORD_ASSIGN_OR_RETURN(const topology::Place place, topology::this_place());
  task.facts = {.version = std::string(version()),
                .processor = topology::processor_name(),
                .cores = place.cores,
                .ranks = 0,
                .measured = today()};
  task.output = options.output;
  task.effort = fmt::format("{} s", task.race_effort.seconds);
  task.fresh = options.fresh;
  return task;
}

void show_progress(const ProgressLine& line, const BenchOperation& operation, std::size_t bytes) {
  line.show(fmt::format("{} of {}", operation.name, bytes_text(bytes)));
}

// Tunes one collective after the other, each at one size after the other.
class Tuner {
 public:
  Tuner(const CommandRanks& ranks, const Task& task, Communicator control, const InterruptWatch& watch)
      : ranks_(ranks),
        task_(task),
        control_(control),
        meter_(std::move(control), watch),
        is_printer_(ranks.rank() == 0),
        line_(is_printer_),
        kept_(task.output.table + ".partial", task.facts, task.effort) {
    if (task.fresh) kept_.drop();
  }

  // Returns false if a rank was interrupted.
  Result<bool> run() {
    for (const BenchOperation* operation : task_.operations) {
      ACCORD_ASSIGN_OR_RETURN(const bool done, tune(*operation));
      if (!done) return false;
    }
    return true;
  }

  const std::vector<TunedCollective>& tuned() const { return tuned_; }
  void finish() { kept_.drop(); }

 private:
  Result<bool> tune(const BenchOperation& operation) {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                            candidates_for(operation.collective, ranks_.size()));
    std::vector<Contender> contenders;
    std::vector<TunedPoint> points;
    const bool sized = operation.collective != Collective::kBarrier;
    for (const std::size_t bytes : sized ? task_.sizes : std::vector<std::size_t>{0}) {
      TunedPoint point{.bytes = bytes, .timings = {}};
      ACCORD_ASSIGN_OR_RETURN(const bool known, find_kept(operation, point));
      if (!known) {
        if (contenders.empty()) ACCORD_RETURN_IF_ERROR(make_contenders(operation, candidates, contenders));
        show_progress(line_, operation, bytes);
        ACCORD_ASSIGN_OR_RETURN(const bool done, measure(operation, candidates, contenders, point));
        if (!done) return false;
        if (is_printer_) ACCORD_RETURN_IF_ERROR(kept_.add(operation.collective, point));
      }
      points.push_back(std::move(point));
    }
    if (is_printer_) add(operation, std::move(points));
    return true;
  }

  // Returns whether rank 0 has this point. Only rank 0 gets its timings.
  Result<bool> find_kept(const BenchOperation& operation, TunedPoint& point) {
    std::uint8_t known = 0;
    if (is_printer_ && !task_.fresh) {
      if (std::optional<TunedPoint> kept = kept_.find(operation.collective, point.bytes)) {
        point = *std::move(kept);
        known = 1;
      }
    }
    ACCORD_RETURN_IF_ERROR(control_.broadcast(Buffer{&known, 1, DType::kUInt8}, 0));
    return known != 0;
  }

  Status make_contenders(const BenchOperation& operation, const std::vector<Candidate>& candidates,
                         std::vector<Contender>& contenders) {
    for (const Candidate& candidate : candidates) {
      const std::string table = candidate.name == "default"
                                    ? ""
                                    : fmt::format("{}:0-inf={}", to_string(operation.collective), candidate.name);
      ACCORD_ASSIGN_OR_RETURN(Communicator comm,
                              ranks_.communicator(fmt::format("tune {} {}", operation.name, candidate.name), table));
      contenders.push_back({candidate.name, std::move(comm)});
    }
    return {};
  }

  // Returns false if a rank was interrupted. All ranks have the same timings, so all decide alike.
  Result<bool> measure(const BenchOperation& operation, const std::vector<Candidate>& candidates,
                       std::vector<Contender>& contenders, TunedPoint& point) {
    std::vector<Contender> remaining;
    for (std::size_t i = 0; i < candidates.size(); ++i)
      if (is_promising(candidates[i], operation.collective, ranks_.size(), point.bytes))
        remaining.push_back(contenders[i]);
    ACCORD_ASSIGN_OR_RETURN(const auto survey, run(operation, point.bytes, task_.survey_effort, remaining));
    if (!survey) return false;
    remaining = finalists(remaining, *survey);
    ACCORD_ASSIGN_OR_RETURN(const auto race_results, run(operation, point.bytes, task_.race_effort, remaining));
    if (!race_results) return false;
    for (std::size_t i = 0; i < remaining.size(); ++i) {
      const Measured& measured = (*race_results)[i];
      if (measured.wrong > 0)
        return Status(StatusCode::kInternal,
                      fmt::format("{} of {} by {} produced {} wrong elements; the first is at {}", operation.name,
                                  bytes_text(point.bytes), remaining[i].name, measured.wrong, measured.first_wrong));
      point.timings.push_back({remaining[i].name, measured.algorithm, measured.round_medians});
    }
    return true;
  }

  Result<std::optional<std::vector<Measured>>> run(const BenchOperation& operation, std::size_t bytes,
                                                   const Effort& effort, std::vector<Contender>& contenders) {
    return meter_.measure({.operation = operation, .bytes = bytes, .ranks = ranks_.size()}, effort, contenders);
  }

  // Returns the default, then the best of the candidates that are near the best. The algorithm that the default uses
  // is left out.
  static std::vector<Contender> finalists(const std::vector<Contender>& all, const std::vector<Measured>& survey) {
    std::vector<std::size_t> order;
    for (std::size_t i = 1; i < all.size(); ++i)
      if (all[i].name != survey[0].algorithm) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return survey[a].median != survey[b].median ? survey[a].median < survey[b].median : a < b;
    });
    std::vector<Contender> remaining = {all[0]};
    for (const std::size_t i : order) {
      const double best = std::min(survey[0].median, survey[order[0]].median);
      if (remaining.size() <= kMaxFinalists && survey[i].median <= kRaceCutoff * best) remaining.push_back(all[i]);
    }
    return remaining;
  }

  void add(const BenchOperation& operation, std::vector<TunedPoint> points) {
    const std::string conditions = fmt::format("[ranks={}-{},oversubscribed={},registered=no]", ranks_.size(),
                                               ranks_.size(), ranks_.size() > task_.facts.cores ? "yes" : "no");
    tuned_.push_back({&operation, conditions, std::move(points)});
    line_.clear();
    show_rules(task_.output, tuned_.back());
  }

  const CommandRanks& ranks_;
  const Task& task_;
  Communicator control_;
  Meter meter_;
  const bool is_printer_;
  const ProgressLine line_;
  KeptResults kept_;
  std::vector<TunedCollective> tuned_;
};

// Returns the exit code.
Result<int> tune(const TuneOptions& options, Task task) {
  ACCORD_ASSIGN_OR_RETURN(const comm::JobPlace place, comm::job_place(process_environment()));
  if (place.rank == 0) {
    ACCORD_RETURN_IF_ERROR(check_files(task.output));
    ACCORD_RETURN_IF_ERROR(check_writable(task.output.table + ".partial"));
  }
  const InterruptWatch watch;
  ACCORD_ASSIGN_OR_RETURN(
      const CommandRanks ranks,
      CommandRanks::create(options.ranks > 0 ? std::optional(options.ranks) : std::nullopt, kDefaultRanks));
  if (ranks.size() < 2) return Status(StatusCode::kInvalidArgument, "tuning requires at least two ranks");
  task.facts.ranks = ranks.size();
  ACCORD_ASSIGN_OR_RETURN(const Communicator control, ranks.communicator("tune control"));
  Tuner tuner(ranks, task, control, watch);
  const bool is_printer = ranks.rank() == 0;
  const auto report_interrupted = [&] {
    if (!is_printer) return;
    ProgressLine(true).clear();
    fmt::print(stderr,
               "accord tune: interrupted; what was measured is kept in {}.partial, and the same command continues from "
               "there\n",
               task.output.table);
  };
  Result<bool> done(false);
  {
    const InterruptDeadline deadline(ranks.rank(), report_interrupted);
    done = tuner.run();
  }
  if (watch.interrupted() && !done.ok()) done = false;  // the other ranks may have ended first
  ACCORD_RETURN_IF_ERROR(done.status());
  if (!*done) report_interrupted();
  if (!is_printer) return kSuccess;
  if (!*done) return kInterrupted;
  ACCORD_RETURN_IF_ERROR(write_results(task.output, task.facts, tuner.tuned()));
  tuner.finish();
  return kSuccess;
}

// Returns the exit code.
Result<int> tune_simulated(const TuneOptions& options, Task task) {
  ACCORD_RETURN_IF_ERROR(check_files(task.output));
  ACCORD_ASSIGN_OR_RETURN(const sim::Machine machine, sim::read_machine(options.machine));
  const int ranks = options.ranks > 0 ? options.ranks : machine.host.ranks;
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology, sim::topology_of(machine, ranks));
  task.facts.processor = plan::kSimulatedProcessor;
  task.facts.cores = machine.host.ranks;
  task.facts.ranks = ranks;
  const std::string conditions =
      fmt::format("[ranks={0}-{0},hosts={1}-{1},oversubscribed=no,registered=no]", ranks, topology.host_count());
  const ProgressLine line(true);
  std::vector<TunedCollective> all;
  for (const BenchOperation* operation : task.operations) {
    const bool sized = operation->collective != Collective::kBarrier;
    ACCORD_ASSIGN_OR_RETURN(
        std::vector<TunedPoint> points,
        simulated_points(operation->collective, sized ? task.sizes : std::vector<std::size_t>{0}, machine, topology,
                         [&](std::size_t bytes) { show_progress(line, *operation, bytes); }));
    all.push_back({operation, conditions, std::move(points)});
    line.clear();
    show_rules(task.output, all.back());
  }
  ACCORD_RETURN_IF_ERROR(write_results(task.output, task.facts, all));
  return kSuccess;
}

int run(const TuneOptions& options) {
  const Result<Task> task = task_of(options);
  const Result<int> code = !task.ok()                ? Result<int>(task.status())
                           : options.machine.empty() ? tune(options, *task)
                                                     : tune_simulated(options, *task);
  return code.ok() ? *code : report_failure("tune", code.status());
}

}  // namespace

void add_tune(CLI::App& app, Action& chosen) {
  CLI::App* command =
      app.add_subcommand("tune", "Measure which algorithm is best on this machine, and write a selection table");
  const auto options = std::make_shared<TuneOptions>();
  command->add_option("collectives", options->collectives, "Collectives to tune [all]");
  command->add_option("-n,--ranks", options->ranks, "Ranks to start here; under a launcher, its ranks are used [2]")
      ->check(CLI::Range(2, plan::kMaxSize));
  command->add_option("-o,--output", options->output.table, "The table's file")
      ->type_name("FILE")
      ->capture_default_str();
  command->add_option("--plot", options->output.plot, "Draw time and bandwidth of all candidates over size, as SVG")
      ->type_name("FILE");
  command->add_option("--min", options->min_size, "Smallest size to measure")->capture_default_str();
  command->add_option("--max", options->max_size, "Largest size to measure")->capture_default_str();
  command->add_option("--seconds", options->seconds, "Time for each candidate at each size")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  command
      ->add_option("--sim", options->machine,
                   "Simulate the machine that this file describes, instead of measuring (docs/simulation.md)")
      ->type_name("FILE");
  command->add_flag("--json", options->output.as_json, "Print the times of all candidates as JSON, instead of rules");
  command->add_flag("--quick", options->quick, "Fewer sizes, a quarter of the time");
  command->add_flag("--fresh", options->fresh, "Discard what an interrupted run has measured");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace accord::cli
