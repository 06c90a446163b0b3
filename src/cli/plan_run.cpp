// `accord plan run`: a plan on ranks that are threads of this process, over a real transport. It is registered under a name of its
// own and selected by a table, as a user's would be. Inputs are small whole numbers, so that every order of a sum gives the same
// result, which is computed here element by element from what the collective is meant to do.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/plan.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "cli/plan.hpp"
#include "plan/json.hpp"

namespace accord::cli {
namespace {

constexpr const char* kName = "plan_that_runs";
constexpr int kWarmUp = 3;

struct Options {
  PlanSource source;
  PlanCallText call;
  std::string transport = "inproc";
  int repeat = 20;
  bool as_json = false;
};

// What rank `rank` has at place `i`: sums and products over a few ranks are exact in every dtype that is offered.
double value_at(Rank rank, std::size_t i) {
  return 1 + static_cast<double>((i + 3 * static_cast<std::size_t>(rank)) % 5);
}

// The collective as its definition says it.
struct Reference {
  Collective collective;
  ReduceOp op;
  int size;
  Rank root;
  std::size_t count;  // of a part, where the collective divides a buffer

  double combined(std::size_t i) const {
    double result = value_at(0, i);
    for (Rank rank = 1; rank < size; ++rank) {
      const double value = value_at(rank, i);
      result = op == ReduceOp::kMin   ? std::min(result, value)
               : op == ReduceOp::kMax ? std::max(result, value)
                                      : result + value;
    }
    return result;
  }
  double output_at(Rank rank, std::size_t i) const {
    const std::size_t first = count * static_cast<std::size_t>(rank);
    switch (collective) {
      case Collective::kBarrier: return 0;
      case Collective::kBroadcast:
      case Collective::kSendRecv: return value_at(root, i);
      case Collective::kScatter: return value_at(root, first + i);
      case Collective::kGather:
      case Collective::kAllGather: return value_at(static_cast<Rank>(i / count), i % count);
      case Collective::kAllToAll: return value_at(static_cast<Rank>(i / count), first + i % count);
      case Collective::kReduceScatter: return combined(first + i);
      case Collective::kReduce:
      case Collective::kAllReduce: return combined(i);
    }
    return 0;
  }
};

// A buffer of one of the dtypes that are offered.
class Elements {
 public:
  Elements(std::size_t count, DType dtype) : dtype_(dtype), bytes_(count * size_of(dtype)) {}

  std::size_t count() const { return bytes_.size() / size_of(dtype_); }
  Buffer buffer() { return {bytes_.data(), count(), dtype_}; }
  void set(std::size_t i, double value) {
    switch (dtype_) {
      case DType::kFloat64: store(i, value); break;
      case DType::kInt32: store(i, static_cast<std::int32_t>(value)); break;
      case DType::kInt64: store(i, static_cast<std::int64_t>(value)); break;
      default: store(i, static_cast<float>(value)); break;
    }
  }
  double get(std::size_t i) const {
    switch (dtype_) {
      case DType::kFloat64: return load<double>(i);
      case DType::kInt32: return load<std::int32_t>(i);
      case DType::kInt64: return static_cast<double>(load<std::int64_t>(i));
      default: return load<float>(i);
    }
  }

 private:
  template <typename T>
  void store(std::size_t i, T value) {
    std::memcpy(&bytes_[i * sizeof value], &value, sizeof value);
  }
  template <typename T>
  T load(std::size_t i) const {
    T value;
    std::memcpy(&value, &bytes_[i * sizeof value], sizeof value);
    return value;
  }

  DType dtype_;
  std::vector<std::byte> bytes_;
};

struct Run {
  plan::Plan plan;
  PlanCall call;
  Reference reference;
  CommunicatorOptions options;
  int repeat = 1;
};

std::size_t elements_of(const plan::BufferRole& role, Rank rank, const Reference& reference) {
  if (!plan::holds(role, rank, reference.root)) return 0;
  return role.divided ? reference.count * static_cast<std::size_t>(reference.size) : reference.count;
}

Call call_of(const Run& run, Rank rank, Elements& input, Elements& output) {
  Call call{.collective = run.plan.collective,
            .input = input.buffer(),
            .output = output.buffer(),
            .op = run.call.op,
            .root = run.plan.root};
  if (plan::traits_of(run.plan.collective).one_buffer) call.input = output.buffer();
  if (run.plan.collective == Collective::kSendRecv)
    return rank == 0 ? Call::send(input.buffer(), 1) : Call::recv(output.buffer(), 0);
  return call;
}

// Runs the rank's part; gives the seconds of each run.
Result<std::vector<double>> run_rank(const Run& run, Rank rank, const std::shared_ptr<Store>& store) {
  ACCORD_ASSIGN_OR_RETURN(Communicator comm, Communicator::create(store, rank, run.plan.size, run.options));
  const plan::CollectiveTraits& traits = plan::traits_of(run.plan.collective);
  Elements input(elements_of(traits.input, rank, run.reference), run.call.dtype);
  Elements output(elements_of(traits.output, rank, run.reference), run.call.dtype);
  for (std::size_t i = 0; i < input.count(); ++i) input.set(i, value_at(rank, i));
  const Call call = call_of(run, rank, input, output);
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUp + run.repeat; ++i) {
    if (traits.one_buffer)
      for (std::size_t at = 0; at < output.count(); ++at) output.set(at, value_at(rank, at));
    ACCORD_RETURN_IF_ERROR(comm.barrier());
    const auto begin = Clock::now();
    ACCORD_RETURN_IF_ERROR(comm.run(call));
    if (i >= kWarmUp) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  ACCORD_RETURN_IF_ERROR(comm.barrier());
  for (std::size_t i = 0; i < output.count(); ++i) {
    const double expected = run.reference.output_at(rank, i);
    if (output.get(i) != expected)
      return Status(StatusCode::kInternal, fmt::format("rank {} has {} at place {} of its output; {} is right", rank,
                                                       output.get(i), i, expected));
  }
  return seconds;
}

// The seconds of each run at the rank that took longest.
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

Result<Run> prepare(plan::Plan plan, const Options& options) {
  ACCORD_ASSIGN_OR_RETURN(const PlanCall call, read_plan_call(options.call, plan.collective));
  Run run{.plan = std::move(plan), .call = call, .reference = {}, .options = {}, .repeat = options.repeat};
  run.reference = {.collective = run.plan.collective,
                   .op = call.op,
                   .size = run.plan.size,
                   .root = run.plan.root,
                   .count = call.bytes / size_of(call.dtype)};
  run.options.transport = options.transport;
  run.options.select = fmt::format("{}:0-inf={}", to_string(run.plan.collective), kName);
  return run;
}

int run_plan(const Options& options) {
  const Result<plan::Plan> plan = read_plan_source(options.source);
  if (!plan.ok()) return plan_failure("run", plan.status());
  if (const Status right = register_plan(plan::to_json(*plan), {.name = kName}); !right.ok())
    return plan_refused("run", right);
  const Result<Run> run = prepare(*plan, options);
  if (!run.ok()) return plan_failure("run", run.status());
  const Result<std::vector<double>> seconds = run_ranks(*run);
  if (!seconds.ok()) return plan_failure("run", seconds.status());
  const double median = (*seconds)[seconds->size() / 2], least = seconds->front();
  const PlanFigures figures = figures_of(run->plan, run->call);
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
    fmt::print("{}: {} of {} over {}: right on every rank\n  median {}, minimum {} of {} runs; predicted {}\n",
               to_string(run->plan), bytes_text(run->call.bytes), to_string(run->call.dtype), options.transport,
               time_text(median), time_text(least), options.repeat, time_text(figures.seconds));
  }
  return kSuccess;
}

}  // namespace

void add_plan_run(CLI::App& plan, Action& chosen) {
  CLI::App* command = plan.add_subcommand("run", "Run a plan on threads of this process, check the result and time it");
  const auto options = std::make_shared<Options>();
  add_plan_source(*command, options->source);
  command->add_option("--bytes", options->call.bytes, "Of the caller's buffer; of one part where it is divided")
      ->capture_default_str();
  command->add_option("--dtype", options->call.dtype, "Of the elements")
      ->check(CLI::IsMember({"float32", "float64", "int32", "int64"}))
      ->capture_default_str();
  command->add_option("--op", options->call.op, "Of a collective that reduces")
      ->check(CLI::IsMember({"sum", "min", "max"}))
      ->capture_default_str();
  command->add_option("--transport", options->transport, "How bytes travel")
      ->check(CLI::IsMember({"inproc", "shm"}))
      ->capture_default_str();
  command->add_option("--repeat", options->repeat, "Timed runs, after a few to warm up")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return run_plan(*options); }; });
}

}  // namespace accord::cli
