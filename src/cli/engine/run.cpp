// `accord engine run`: joins the group that the launcher created, loads this rank's shard, runs the inputs several
// times, and reports the cost. Each rank reads the inputs itself. Rank 0 writes the outputs and prints, using figures
// that the ranks gather in one collective.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/engine.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "cli/engine/commands.hpp"
#include "cli/engine/load.hpp"
#include "cli/engine/safetensors.hpp"

namespace accord::cli {
namespace {

constexpr int kMaxRuns = 1'000'000;

struct EngineRunOptions {
  std::string package;
  std::string inputs;
  std::string outputs;
  LoadChoice load;
  int warm_up = 1;
  int repeat = 1;
  bool check_ranks_equal = false;
  bool profile = false;
  std::string trace;
  bool as_json = false;
};

// Figures that one rank sends to the others. All fields are 8 bytes wide, so that they are sent as a row of int64.
struct RankFigures {
  std::int64_t weight_bytes_read = 0;
  std::int64_t shard_bytes = 0;
  std::int64_t replicated_bytes = 0;
  std::int64_t metadata_bytes_read = 0;
  std::int64_t load_nanoseconds = 0;
  std::int64_t median_nanoseconds = 0;
  std::int64_t minimum_nanoseconds = 0;
  std::int64_t peak_resident_bytes = 0;
  std::int64_t output_hash = 0;  ///< XXH3 of all outputs, as bits
};
constexpr std::size_t kFigures = sizeof(RankFigures) / sizeof(std::int64_t);

// The largest resident set of this process. getrusage() would also count the program before exec.
std::int64_t peak_resident_bytes() {
  const Result<std::string> status = read_file("/proc/self/status");
  if (!status.ok()) return 0;
  const std::size_t line = status->find("VmHWM:");
  return line == std::string::npos ? 0 : std::strtoll(status->c_str() + line + 6, nullptr, 10) * 1024;
}

// Reads the tensors of the file, by name, in the order of the engine's inputs.
Result<std::vector<NamedTensor>> read_inputs(const std::string& path, const std::vector<TensorInfo>& wanted) {
  ACCORD_ASSIGN_OR_RETURN(std::vector<NamedTensor> found, read_safetensors(path));
  std::vector<std::string_view> names;
  names.reserve(wanted.size());
  for (const TensorInfo& info : wanted) names.push_back(info.name);
  for (const NamedTensor& tensor : found) {
    if (std::find(names.begin(), names.end(), tensor.name) != names.end()) continue;
    return unknown_name("input", tensor.name, names).with_context(path);
  }
  std::vector<NamedTensor> inputs;
  for (const TensorInfo& info : wanted) {
    const auto tensor = std::find_if(found.begin(), found.end(), [&](const auto& t) { return t.name == info.name; });
    if (tensor == found.end()) {
      return Status(StatusCode::kNotFound,
                    fmt::format("{} has no tensor \"{}\", which is an input of the engine", path, info.name));
    }
    inputs.push_back(std::move(*tensor));
  }
  return inputs;
}

std::vector<TensorView> views_of(std::vector<NamedTensor>& tensors) {
  std::vector<TensorView> views;
  for (NamedTensor& tensor : tensors) {
    const std::size_t count = tensor.bytes.size() / size_of(tensor.dtype);
    views.push_back({Buffer{tensor.bytes.data(), count, tensor.dtype}, tensor.shape});
  }
  return views;
}

std::vector<NamedTensor> copies_of(const std::vector<TensorView>& views, const std::vector<TensorInfo>& infos) {
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const auto* begin = static_cast<const std::byte*>(views[i].buffer.data);
    tensors.push_back({infos[i].name, views[i].buffer.dtype, views[i].shape, {begin, begin + views[i].buffer.bytes()}});
  }
  return tensors;
}

std::int64_t hash_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::byte> bytes;
  for (const NamedTensor& tensor : tensors) bytes.insert(bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
  return static_cast<std::int64_t>(xxh3(bytes));
}

struct RunResult {
  std::vector<NamedTensor> outputs;
  RankFigures figures;
  std::vector<OpTime> profile;  ///< of the timed runs; empty unless requested
  std::string trace;            ///< likewise
};

Result<RunResult> run_engine(const EngineRunOptions& options, Engine& engine, const GroupChoice& group) {
  ACCORD_ASSIGN_OR_RETURN(std::vector<NamedTensor> inputs, read_inputs(options.inputs, engine.inputs()));
  const std::vector<TensorView> views = views_of(inputs);
  ACCORD_ASSIGN_OR_RETURN(EngineContext context, engine.create_context());
  RunResult result;
  std::vector<std::int64_t> times;
  for (int turn = 0; turn < options.warm_up + options.repeat; ++turn) {
    if (turn == options.warm_up && options.profile) context.set_profiling(Profiling::kOn);
    if (turn == options.warm_up && !options.trace.empty()) context.set_profiling(Profiling::kTrace);
    const auto began = Clock::now();
    ACCORD_ASSIGN_OR_RETURN(const std::vector<TensorView> outputs, context.run(views));
    if (turn >= options.warm_up) times.push_back(Duration(Clock::now() - began).count());
    if (turn + 1 == options.warm_up + options.repeat) result.outputs = copies_of(outputs, engine.outputs());
  }
  std::sort(times.begin(), times.end());
  const LoadReport& report = engine.load_report();
  result.figures = {.weight_bytes_read = static_cast<std::int64_t>(report.weight_bytes_read),
                    .shard_bytes = static_cast<std::int64_t>(report.shard_bytes),
                    .replicated_bytes = static_cast<std::int64_t>(report.replicated_bytes),
                    .metadata_bytes_read = static_cast<std::int64_t>(report.manifest_bytes + group.bytes_read),
                    .load_nanoseconds = static_cast<std::int64_t>(report.seconds * 1e9),
                    .median_nanoseconds = times[times.size() / 2],
                    .minimum_nanoseconds = times.front(),
                    .peak_resident_bytes = peak_resident_bytes(),
                    .output_hash = hash_of(result.outputs)};
  result.profile = context.profile();
  if (!options.trace.empty()) {
    ACCORD_ASSIGN_OR_RETURN(result.trace, context.trace());
  }
  return result;
}

Result<std::vector<RankFigures>> gather(const Communicator& comm, const RankFigures& mine) {
  std::vector<RankFigures> all(static_cast<std::size_t>(comm.size()));
  Communicator group = comm;
  ACCORD_RETURN_IF_ERROR(group.all_gather(ConstBuffer(&mine, kFigures, DType::kInt64),
                                          Buffer{all.data(), kFigures * all.size(), DType::kInt64}));
  return all;
}

Status ranks_equal(const std::vector<RankFigures>& ranks) {
  std::vector<Rank> different;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].output_hash != ranks[0].output_hash) different.push_back(static_cast<Rank>(rank));
  }
  if (different.empty()) return Status();
  return Status(StatusCode::kMismatch, ranks_text(different) + ": outputs differ from those of rank 0", different);
}

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

nlohmann::ordered_json report_json(const EngineRunOptions& options, const std::vector<RankFigures>& ranks,
                                   const std::vector<OpTime>& profile) {
  auto list = nlohmann::ordered_json::array();
  for (const RankFigures& rank : ranks) {
    list.push_back({{"weight_bytes_read", rank.weight_bytes_read},
                    {"shard_bytes", rank.shard_bytes},
                    {"replicated_bytes", rank.replicated_bytes},
                    {"metadata_bytes_read", rank.metadata_bytes_read},
                    {"load_seconds", seconds(rank.load_nanoseconds)},
                    {"median_seconds", seconds(rank.median_nanoseconds)},
                    {"minimum_seconds", seconds(rank.minimum_nanoseconds)},
                    {"peak_resident_bytes", rank.peak_resident_bytes},
                    {"output_xxh3", hex64(static_cast<std::uint64_t>(rank.output_hash))}});
  }
  nlohmann::ordered_json report = {{"package", options.package},
                                   {"repeat", options.repeat},
                                   {"ranks_equal", ranks_equal(ranks).ok()},
                                   {"ranks", list}};
  if (options.profile) {
    auto ops = nlohmann::ordered_json::array();
    for (const OpTime& time : profile)
      ops.push_back({{"op", time.op}, {"calls", time.calls}, {"seconds", time.seconds}});
    report["profile"] = ops;
  }
  return report;
}

void print_profile(const std::vector<OpTime>& profile, int runs) {
  double total = 0;
  for (const OpTime& time : profile) total += time.seconds;
  fmt::print("\nwhere rank 0 spent its time, for each run\n{:>12} {:>7} {:>8}  {}\n", "ms", "share", "calls", "op");
  for (const OpTime& time : profile) {
    fmt::print("{:>12.3f} {:>6.1f}% {:>8}  {}\n", time.seconds * 1e3 / runs, 100 * time.seconds / total,
               time.calls / static_cast<std::uint64_t>(runs), time.op);
  }
}

void print_report(const EngineRunOptions& options, const std::vector<RankFigures>& ranks) {
  fmt::print("{} on {} rank{}, {} run{}\n", options.package, ranks.size(), ranks.size() == 1 ? "" : "s", options.repeat,
             options.repeat == 1 ? "" : "s");
  fmt::print("{:>5} {:>12} {:>12} {:>12} {:>14} {:>14} {:>12}  {}\n", "rank", "median ms", "minimum ms", "load ms",
             "weights read", "of them shard", "peak memory", "output xxh3");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankFigures& figures = ranks[rank];
    fmt::print("{:>5} {:>12.3f} {:>12.3f} {:>12.1f} {:>14} {:>14} {:>12}  {}\n", rank,
               seconds(figures.median_nanoseconds) * 1e3, seconds(figures.minimum_nanoseconds) * 1e3,
               seconds(figures.load_nanoseconds) * 1e3, figures.weight_bytes_read, figures.shard_bytes,
               bytes_text(static_cast<std::size_t>(figures.peak_resident_bytes)),
               hex64(static_cast<std::uint64_t>(figures.output_hash)));
  }
}

Status run(const EngineRunOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const Communicator comm, Communicator::from_environment());
  ACCORD_ASSIGN_OR_RETURN(const GroupChoice group, choose_groups(options.package, options.load, comm.size()));
  ACCORD_ASSIGN_OR_RETURN(Engine engine, load_on_ranks(options.package, comm, group, options.load));
  ACCORD_ASSIGN_OR_RETURN(const RunResult result, run_engine(options, engine, group));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<RankFigures> ranks, gather(comm, result.figures));
  if (comm.rank() == 0) {
    if (!options.trace.empty()) ACCORD_RETURN_IF_ERROR(write_file(options.trace, result.trace));
    if (!options.outputs.empty()) ACCORD_RETURN_IF_ERROR(write_safetensors(options.outputs, result.outputs));
    if (options.as_json) {
      fmt::print("{}\n", report_json(options, ranks, result.profile).dump());
    } else {
      print_report(options, ranks);
      if (options.profile) print_profile(result.profile, options.repeat);
    }
  }
  return options.check_ranks_equal ? ranks_equal(ranks) : Status();
}

}  // namespace

void add_engine_run(CLI::App& engine, Action& chosen) {
  CLI::App* command =
      engine.add_subcommand("run", "Run a package on every rank of a job: accord run -n 2 accord engine run ...");
  const auto options = std::make_shared<EngineRunOptions>();
  command->add_option("package", options->package, "The package's directory")->required();
  command
      ->add_option("--inputs", options->inputs,
                   "safetensors file with the engine's inputs by name; every rank reads it")
      ->required();
  command->add_option("--outputs", options->outputs, "safetensors file that rank 0 writes the outputs to");
  add_load_options(*command, options->load);
  command->add_option("--repeat", options->repeat, "Timed runs; the median is shown [1]")
      ->check(CLI::Range(1, kMaxRuns));
  command->add_option("--warm-up", options->warm_up, "Untimed runs before those [1]")->check(CLI::Range(0, kMaxRuns));
  command->add_flag("--check-ranks-equal", options->check_ranks_equal,
                    "Fail unless the outputs of all ranks are bit-identical");
  command->add_flag("--profile", options->profile, "Show the time that rank 0 spent in each op");
  command
      ->add_option("--trace", options->trace,
                   "Write a trace of the timed runs of all ranks to this file, for ui.perfetto.dev")
      ->excludes("--profile");
  command->add_flag("--json", options->as_json, "One JSON object, on one line");
  command->callback([options, &chosen] {
    chosen = [options] {
      const Status status = run(*options);
      return status.ok() ? kSuccess : engine_failure("run", status);
    };
  });
}

}  // namespace accord::cli
