// `accord engine report`: loads the package for each rank in turn and joins their reports. With --run the ranks are
// threads of this process, all loaded at once, and run on generated inputs: zeros where ids are expected, small
// numbers elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "accord/communicator.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/engine/chart.hpp"
#include "cli/engine/commands.hpp"
#include "cli/engine/load.hpp"
#include "cli/number_checks.hpp"
#include "cli/plan/commands.hpp"
#include "engine/report/engine_report.hpp"
#include "engine/runtime/inputs.hpp"
#include "engine/runtime/run_context.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace accord::cli {
namespace {

using engine::LoadedEngine;
using engine::SymbolValues;
using Json = nlohmann::ordered_json;

struct ReportOptions {
  std::string package;
  LoadChoice load;
  int ranks = 1;
  std::vector<std::string> sizes;  ///< "name=value"
  std::int64_t tokens = 0;
  bool run = false;
  int repeat = 5;
  bool as_json = false;
  std::string chart;
};

Result<std::map<std::string, std::int64_t>> sizes_of(const ReportOptions& options) {
  std::map<std::string, std::int64_t> sizes;
  if (options.tokens > 0) sizes["tokens"] = options.tokens;
  for (const std::string& size : options.sizes) {
    const std::size_t equals = size.find('=');
    if (equals == std::string::npos) {
      return Status(StatusCode::kInvalidArgument, fmt::format("--sizes {}: expected name=value", size));
    }
    ACCORD_ASSIGN_OR_RETURN(sizes[size.substr(0, equals)],
                            parse_integer(std::string_view(size).substr(equals + 1), "--sizes " + size));
  }
  return sizes;
}

Result<GroupChoice> groups_of(const ReportOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(GroupChoice choice, choose_groups(options.package, options.load, options.ranks));
  if (choice.alone == 1) return choice;
  return Status(StatusCode::kInvalidArgument, options.package + " has no group, so --ranks cannot be used");
}

struct MadeInputs {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorView> views;
};

Result<MadeInputs> make_inputs(const engine::Graph& graph, const SymbolValues& symbols) {
  MadeInputs inputs;
  for (const engine::ValueId id : graph.inputs) {
    const engine::Value& value = graph.values[static_cast<std::size_t>(id)];
    std::vector<std::int64_t> shape;
    for (const engine::SymbolicInt& size : value.shape) {
      ACCORD_ASSIGN_OR_RETURN(shape.emplace_back(), size.evaluate(symbols));
    }
    const kernels::Layout layout = kernels::contiguous_layout(shape);
    const auto count = static_cast<std::size_t>(layout.count());
    std::vector<std::byte>& bytes = inputs.bytes.emplace_back(count * size_of(value.dtype));
    if (kernels::is_real(value.dtype)) {
      std::vector<float> numbers(count);
      for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i % 7) * 0.125F - 0.375F;
      ACCORD_RETURN_IF_ERROR(
          kernels::convert({numbers.data(), DType::kFloat32, layout}, {bytes.data(), value.dtype, layout}));
    }
    inputs.views.push_back({Buffer{bytes.data(), count, value.dtype, {}}, shape});
  }
  return inputs;
}

// Average seconds of each op over the runs.
std::vector<double> seconds_of(const engine::RunContext& context, int runs) {
  const std::vector<engine::Node>& nodes = context.engine().graph().nodes;
  std::vector<double> seconds(nodes.size(), 0);
  for (const engine::StepTime& step : context.recorded().steps) {
    if (step.node == nullptr) continue;
    seconds[static_cast<std::size_t>(step.node - nodes.data())] +=
        static_cast<double>(step.end_ns - step.begin_ns) * 1e-9 / runs;
  }
  return seconds;
}

Status run_rank(const ReportOptions& options, std::shared_ptr<LoadedEngine> loaded, const SymbolValues& symbols,
                Json& report) {
  ACCORD_ASSIGN_OR_RETURN(const MadeInputs inputs, make_inputs(loaded->graph(), symbols));
  engine::RunContext context(std::move(loaded));
  ACCORD_RETURN_IF_ERROR(context.run(inputs.views).status());
  context.set_profiling(Profiling::kTrace);
  for (int i = 0; i < options.repeat; ++i) ACCORD_RETURN_IF_ERROR(context.run(inputs.views).status());
  const std::vector<double> seconds = seconds_of(context, options.repeat);
  for (std::size_t i = 0; i < seconds.size(); ++i) report["ops"][i]["seconds"] = seconds[i];
  double all = 0;
  for (const engine::StepTime& run : context.recorded().runs) all += static_cast<double>(run.end_ns - run.begin_ns);
  report["seconds"] = all * 1e-9 / options.repeat;
  return Status();
}

Result<Json> report_rank(const ReportOptions& options, const GroupChoice& choice, Rank rank,
                         const std::shared_ptr<Store>& store) {
  ACCORD_ASSIGN_OR_RETURN(const LoadOptions load, load_options(options.load));
  std::shared_ptr<LoadedEngine> loaded;
  if (options.run) {
    ACCORD_ASSIGN_OR_RETURN(const Communicator comm, Communicator::create(store, rank, options.ranks, {}));
    ACCORD_ASSIGN_OR_RETURN(const auto groups, communicators_of(choice, comm));
    ACCORD_ASSIGN_OR_RETURN(loaded, LoadedEngine::load_and_bind(options.package, groups, load));
  } else {
    ACCORD_ASSIGN_OR_RETURN(loaded, LoadedEngine::load(options.package, places_of(choice, rank), load));
  }
  ACCORD_ASSIGN_OR_RETURN(const auto sizes, sizes_of(options));
  ACCORD_ASSIGN_OR_RETURN(const SymbolValues symbols, engine::chosen_sizes(loaded->graph(), sizes));
  ACCORD_ASSIGN_OR_RETURN(Json report, engine::report_of(*loaded, symbols));
  if (options.run) ACCORD_RETURN_IF_ERROR(run_rank(options, loaded, symbols, report));
  return report;
}

Result<Json> report(const ReportOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const GroupChoice choice, groups_of(options));
  const auto count = static_cast<std::size_t>(options.ranks);
  std::vector<Json> reports(count);
  Status failure;
  std::mutex mutex;
  const std::shared_ptr<Store> store = make_memory_store();
  const auto of_rank = [&](Rank rank) {
    Result<Json> result = report_rank(options, choice, rank, store);
    const std::lock_guard lock(mutex);
    if (!result.ok() && failure.ok()) failure = result.status();
    if (result.ok()) reports[static_cast<std::size_t>(rank)] = *std::move(result);
  };
  if (options.run) {
    std::vector<std::thread> threads;
    threads.reserve(count);
    for (Rank rank = 0; rank < options.ranks; ++rank) threads.emplace_back(of_rank, rank);
    for (std::thread& thread : threads) thread.join();
  } else {
    for (Rank rank = 0; rank < options.ranks && failure.ok(); ++rank) of_rank(rank);
  }
  if (!failure.ok()) return failure;
  return Json{{"package", options.package}, {"runs", options.run ? options.repeat : 0}, {"ranks", std::move(reports)}};
}

std::string count_text(std::uint64_t count) {
  if (count < 1000) return fmt::format("{}", count);
  const char* unit = "";
  auto scaled = static_cast<double>(count);
  for (const char* next : {"k", "M", "G", "T", "P"}) {
    if (scaled < 1000) break;
    scaled /= 1000;
    unit = next;
  }
  return fmt::format("{:.3g}{}", scaled, unit);
}

// Lists the ops that were fused, such as " = aten.mul, aten.mean (2)".
std::string parts_text(const Json& op, const Json& model) {
  std::vector<std::pair<std::string, int>> counts;
  for (const Json& index : op["of"]) {
    const std::string name = model[index.get<std::size_t>()]["op"];
    const auto known =
        std::find_if(counts.begin(), counts.end(), [&](const auto& entry) { return entry.first == name; });
    if (known == counts.end()) {
      counts.emplace_back(name, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [name, times] : counts) {
    text += (text.empty() ? " = " : ", ") + name + (times > 1 ? fmt::format(" ({})", times) : "");
  }
  return text;
}

void print_ranks(const Json& report) {
  const bool timed = report["runs"].get<int>() > 0;
  fmt::print("{:>5} {:>12} {:>14} {:>12} {:>12} {:>10} {:>14}{}\n", "rank", "shard", "on every rank", "arena", "moved",
             "flops", "to collectives", timed ? fmt::format("{:>12}", "time") : "");
  for (std::size_t i = 0; i < report["ranks"].size(); ++i) {
    const Json& rank = report["ranks"][i];
    const auto bytes = [&](const char* name) { return bytes_text(rank[name].get<std::size_t>()); };
    fmt::print("{:>5} {:>12} {:>14} {:>12} {:>12} {:>10} {:>14}{}\n", i, bytes("shard_bytes"),
               bytes("replicated_bytes"), bytes("arena_bytes"), bytes("bytes"),
               count_text(rank["flops"].get<std::uint64_t>()), bytes("collective_bytes"),
               timed ? fmt::format("{:>12}", time_text(rank["seconds"].get<double>())) : "");
  }
}

void print_ops(const Json& first, bool timed) {
  fmt::print("\nops of rank 0, in the order in which they run\n{:>5} {}{:>10} {:>10} {:>10}  {}\n", "op",
             timed ? fmt::format("{:>10} ", "time") : "", "moved", "weights", "flops", "what (= fused ops), in module");
  std::map<std::string, int> others;
  for (std::size_t i = 0; i < first["ops"].size(); ++i) {
    const Json& op = first["ops"][i];
    if (op["runs"] != "step") {
      ++others[op["runs"].get<std::string>()];
      continue;
    }
    std::string what = op["op"].get<std::string>() + parts_text(op, first["model"]);
    if (op.contains("collective")) {
      const Json& collective = op["collective"];
      what += fmt::format(" of {} on {} ranks of {}: {}", bytes_text(collective["bytes"].get<std::size_t>()),
                          collective["ranks"].dump(), collective["group"].get<std::string>(),
                          collective["algorithm"].get<std::string>());
    }
    fmt::print("{:>5} {}{:>10} {:>10} {:>10}  {}{}\n", i,
               timed ? fmt::format("{:>10} ", time_text(op["seconds"].get<double>())) : "",
               bytes_text(op["bytes"].get<std::size_t>()), bytes_text(op["weight_bytes"].get<std::size_t>()),
               count_text(op["flops"].get<std::uint64_t>()), what,
               op["module"].get<std::string>().empty() ? "" : ", in " + op["module"].get<std::string>());
  }
  for (const auto& [runs, count] : others) {
    fmt::print("{} more {}\n", count,
               runs == "view" ? "only view another op's result in another shape"
                              : "were computed when the package was loaded");
  }
  std::map<std::string, int> removed;
  for (const Json& op : first["model"]) {
    if (op["runs"] == "removed") ++removed[op["by"].get<std::string>()];
  }
  for (const auto& [pass, count] : removed) fmt::print("{} ops of the model were removed by {}\n", count, pass);
}

void print_report(const Json& report) {
  const Json& first = report["ranks"][0];
  std::string sizes;
  for (const auto& [name, size] : first["sizes"].items()) sizes += fmt::format(", {} = {}", name, size.dump());
  fmt::print("{} on {} rank{}{}: all {} ops of the model run in the engine\n", report["package"].get<std::string>(),
             report["ranks"].size(), report["ranks"].size() == 1 ? "" : "s", sizes, first["model"].size());
  print_ranks(report);
  print_ops(first, report["runs"].get<int>() > 0);
}

int run_report(const ReportOptions& options) {
  const Result<Json> result = report(options);
  if (!result.ok()) return engine_failure("report", result.status());
  if (!options.chart.empty()) {
    const Status written = write_file(options.chart, engine_chart(*result));
    if (!written.ok()) return engine_failure("report", written);
  }
  if (options.as_json) {
    fmt::print("{}\n", result->dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_report(*result);
  }
  return kSuccess;
}

}  // namespace

void add_engine_report(CLI::App& engine, Action& chosen) {
  CLI::App* command =
      engine.add_subcommand("report", "Show where each op of a package runs, and its cost on each rank");
  const auto options = std::make_shared<ReportOptions>();
  command->add_option("package", options->package, "The package's directory")->required();
  command->add_option("-n,--ranks", options->ranks, "Ranks that share the package [1]")->check(CLI::Range(1, 1024));
  add_load_options(*command, options->load);
  command->add_option("--sizes", options->sizes, "Sizes of its symbols: batch=8 length=128 [the smallest]")
      ->type_name("NAME=VALUE");
  command->add_option("--tokens", options->tokens, "Same as --sizes tokens=VALUE, for a language model")
      ->check(positive_number());
  command->add_flag("--run", options->run,
                    "Run the package, with the ranks as threads of this process, and show the time of each op");
  command->add_option("--repeat", options->repeat, "Runs with --run; times are averages [5]")
      ->check(CLI::Range(1, 1000));
  command->add_option("--chart", options->chart, "Also draw the report in this SVG file")->type_name("FILE");
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return run_report(*options); }; });
}

}  // namespace accord::cli
