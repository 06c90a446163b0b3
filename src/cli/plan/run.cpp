// `accord plan run`: runs a plan on ranks that are threads of this process, over a real transport. The plan is
// registered and selected by a table, as a user's plan would be. The result is compared with the definition of the
// collective.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/plan.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "cli/bench/reference.hpp"
#include "cli/plan/commands.hpp"
#include "plan/json.hpp"

namespace accord::cli {
namespace {

constexpr int kWarmUp = 3;

struct PlanRunOptions {
  PlanSource source;
  PlanCallText call;
  std::string transport = "inproc";
  int repeat = 20;
  bool as_json = false;
};

struct Run {
  plan::Plan plan;
  std::string name;  ///< name under which it is registered
  PlanCall call;
  std::shared_ptr<const Reference> reference;
  CommunicatorOptions options;
  int repeat = 1;
};

/// Zeroed memory for a rank's buffers: its own, or a window's if the plan is for buffers in windows.
class RankMemory {
 public:
  static Result<RankMemory> create(const Run& run, Communicator& comm, std::size_t input_bytes,
                                   std::size_t output_bytes) {
    constexpr std::size_t kLine = 64;
    const std::size_t output_at = (input_bytes + kLine - 1) / kLine * kLine;
    RankMemory memory;
    if (run.plan.buffers == plan::Buffers::kAnywhere) {
      memory.own_.resize(output_at + output_bytes);
      memory.input = memory.own_.data();
    } else {
      ACCORD_ASSIGN_OR_RETURN(Window window, comm.window(output_at + output_bytes));
      memory.input = window.local().data();
      memory.window_ = std::move(window);
    }
    memory.output = memory.input + output_at;
    return memory;
  }

  std::byte* input = nullptr;
  std::byte* output = nullptr;

 private:
  std::vector<std::byte> own_;
  std::optional<Window> window_;
};

Call call_of(const Run& run, Rank rank, const Buffer& input, const Buffer& output) {
  if (run.plan.collective == Collective::kSendRecv) return rank == 0 ? Call::send(input, 1) : Call::recv(output, 0);
  const bool one_buffer = plan::traits_of(run.plan.collective).one_buffer;
  const Reduction op =
      run.call.op == ReduceOp::kPremulSum ? Reduction::premul_sum(kKnownFactor) : Reduction(run.call.op);
  return {.collective = run.plan.collective,
          .input = one_buffer ? output : input,
          .output = output,
          .op = op,
          .root = run.plan.root};
}

// Runs the rank's part; returns the seconds of each run.
Result<std::vector<double>> run_rank(const Run& run, Rank rank, const std::shared_ptr<Store>& store) {
  ACCORD_ASSIGN_OR_RETURN(Communicator comm, Communicator::create(store, rank, run.plan.size, run.options));
  const bool one_buffer = plan::traits_of(run.plan.collective).one_buffer;
  const Reference& reference = *run.reference;
  const std::size_t element = size_of(run.call.dtype);
  ACCORD_ASSIGN_OR_RETURN(const RankMemory memory, RankMemory::create(run, comm, reference.input_count(rank) * element,
                                                                      reference.output_count(rank) * element));
  const Buffer input{memory.input, reference.input_count(rank), run.call.dtype};
  const Buffer output{memory.output, reference.output_count(rank), run.call.dtype};
  reference.fill(rank, input);
  const Call call = call_of(run, rank, input, output);
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUp + run.repeat; ++i) {
    if (one_buffer) reference.fill(rank, output);
    ACCORD_RETURN_IF_ERROR(comm.barrier());
    const auto begin = Clock::now();
    ACCORD_RETURN_IF_ERROR(comm.run(call));
    if (i >= kWarmUp) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  ACCORD_RETURN_IF_ERROR(comm.barrier());
  const WrongElements wrong = reference.check(rank, output);
  if (wrong.count > 0)
    return Status(StatusCode::kInternal,
                  fmt::format("rank {} has {} wrong elements; the first is at position {} of its output", rank,
                              wrong.count, wrong.first));
  return seconds;
}

// Returns the seconds of each run on the slowest rank, in ascending order.
Result<std::vector<double>> run_ranks(const Run& run) {
  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<double> slowest(static_cast<std::size_t>(run.repeat), 0);
  Status failure;
  std::mutex mutex;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(run.plan.size));
  for (Rank rank = 0; rank < run.plan.size; ++rank) {
    threads.emplace_back([&, rank] {
      const Result<std::vector<double>> seconds = run_rank(run, rank, store);
      const std::lock_guard lock(mutex);
      if (!seconds.ok()) {
        if (failure.ok()) failure = seconds.status();
        return;
      }
      for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], (*seconds)[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failure.ok()) return failure;
  std::sort(slowest.begin(), slowest.end());
  return slowest;
}

Result<Run> prepare(plan::Plan plan, std::string name, const PlanRunOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const PlanCall call, read_plan_call(options.call, plan.collective));
  Run run{.plan = std::move(plan),
          .name = std::move(name),
          .call = call,
          .reference = {},
          .options = {},
          .repeat = options.repeat};
  run.reference = std::make_shared<const Reference>(KnownCall{.collective = run.plan.collective,
                                                              .dtype = call.dtype,
                                                              .op = call.op,
                                                              .size = run.plan.size,
                                                              .root = run.plan.root,
                                                              .count = call.bytes / size_of(call.dtype)});
  run.options.transport = options.transport;
  run.options.select = fmt::format("{}:0-inf={}", to_string(run.plan.collective), run.name);
  return run;
}

// Returns the plan's own name, as far as tables accept it. The names of built-in algorithms are taken.
std::string name_in_tables(const plan::Plan& plan) {
  constexpr std::size_t kLongest = 56;
  std::string name = plan.name.substr(0, kLongest);
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '.') c = '_';
  const bool is_built_in = plan::algorithm_by_name(plan.collective, name).ok();
  return name.empty() || is_built_in ? name + ".given" : name;
}

int run_plan(const PlanRunOptions& options) {
  const Result<plan::Plan> plan = read_plan_source(options.source);
  if (!plan.ok()) return report_failure("plan run", plan.status());
  const std::string name = name_in_tables(*plan);
  if (const Status right = register_plan(plan::to_json(*plan), {.name = name}); !right.ok())
    return plan_refused("run", right);
  const Result<Run> run = prepare(*plan, name, options);
  if (!run.ok()) return report_failure("plan run", run.status());
  const PlanFigures figures = figures_of(run->plan, run->call);
  if (run->plan.multicast_chunks > 0) return plan_refused("run", figures.runs);
  const Result<std::vector<double>> seconds = run_ranks(*run);
  if (!seconds.ok()) return report_failure("plan run", seconds.status());
  const double median = (*seconds)[seconds->size() / 2], least = seconds->front();
  if (options.as_json) {
    const nlohmann::ordered_json answer = {{"plan", run->plan.name},
                                           {"collective", to_string(run->plan.collective)},
                                           {"ranks", run->plan.size},
                                           {"bytes", run->call.bytes},
                                           {"dtype", to_string(run->call.dtype)},
                                           {"op", to_string(run->call.op)},
                                           {"transport", options.transport},
                                           {"repeat", options.repeat},
                                           {"right", true},
                                           {"minimum_seconds", least},
                                           {"median_seconds", median},
                                           {"predicted_seconds", figures.seconds}};
    fmt::print("{}\n", answer.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{}: {} of {} over {}: correct on every rank\n  median {}, minimum {} of {} runs; predicted {}\n",
               to_string(run->plan), bytes_text(run->call.bytes), to_string(run->call.dtype), options.transport,
               time_text(median), time_text(least), options.repeat, time_text(figures.seconds));
  }
  return kSuccess;
}

}  // namespace

void add_plan_run(CLI::App& plan, Action& chosen) {
  CLI::App* command = plan.add_subcommand("run", "Run a plan on threads of this process, check the result and time it");
  const auto options = std::make_shared<PlanRunOptions>();
  add_plan_source(*command, options->source);
  command->add_option("--bytes", options->call.bytes, "Bytes of the caller's buffer, or of one part if it is divided")
      ->capture_default_str();
  add_plan_call(*command, options->call);
  command->add_option("--transport", options->transport, "Transport of the bytes")
      ->check(CLI::IsMember({"inproc", "shm"}))
      ->capture_default_str();
  command->add_option("--repeat", options->repeat, "Timed runs, after a few to warm up")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return run_plan(*options); }; });
}

}  // namespace accord::cli
