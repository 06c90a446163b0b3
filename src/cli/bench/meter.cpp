// Contenders are measured in turns (A B A B): each round takes some samples of every contender, so that a machine
// that slows down slows all of them. A sample begins with a barrier and times calls back to back. Reading the clock
// costs 25 ns, so quick calls are timed several at a time. After a round the ranks compare their times: a sample
// takes as long as on the slowest rank, and if one rank was interrupted, all stop. The check comes last, over the
// same communicator, on data whose result is known; the communicator's flight record then shows which algorithm ran.
#include "cli/bench/meter.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/clock.hpp"
#include "cli/diagnose/attach.hpp"

namespace accord::cli {
namespace {

constexpr double kSampleSeconds = 30e-6;
constexpr double kEstimateSeconds = 200e-6;
constexpr int kMaxCallsPerSample = 1 << 14;  // per sample
constexpr std::size_t kMaxSamples = 100000;

struct Series {
  int calls = 1;  // per sample
  std::size_t samples_per_round = 1;
  std::vector<double> seconds;
  std::vector<double> round_medians;
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Series plan_series(const Effort& effort, int calls, double seconds_of_call) {
  Series series{.calls = calls, .samples_per_round = 1, .seconds = {}, .round_medians = {}};
  if (effort.calls) {
    series.calls = std::clamp(*effort.calls / effort.rounds, 1, calls);
    series.samples_per_round = static_cast<std::size_t>(
        std::max(1, (*effort.calls + effort.rounds * series.calls - 1) / (effort.rounds * series.calls)));
    return series;
  }
  const double samples = effort.seconds / effort.rounds / std::max(seconds_of_call * calls, 1e-9);
  series.samples_per_round = std::clamp<std::size_t>(static_cast<std::size_t>(samples), 1, kMaxSamples);
  return series;
}

// Returns the algorithm of this rank's last operation on the communicator named `group`.
std::string last_algorithm(const std::string& group, const BenchOperation& operation) {
  const Result<std::vector<FlightLog>> logs = logs_of_process(getpid());
  if (!logs.ok()) return "";
  const bool is_message = operation.collective == Collective::kSendRecv;
  for (const FlightLog& log : *logs) {
    if (log.name != group) continue;
    const auto* order = is_message ? log.order(Direction::kSend, 1) : log.order(Direction::kNone);
    const auto* last = order == nullptr ? nullptr : order->last_begun();
    if (last != nullptr) return last->algorithm;
  }
  return "";
}

}  // namespace

Result<std::vector<double>> Meter::slowest(std::vector<double> values) {
  values.push_back(watch_.interrupted() ? 1 : 0);
  const Buffer all{values.data(), values.size(), DType::kFloat64};
  ACCORD_RETURN_IF_ERROR(control_.all_reduce(all, ReduceOp::kMax));
  interrupted_ = interrupted_ || values.back() != 0;
  values.pop_back();
  return values;
}

// Returns the seconds of one operation on this rank.
Result<double> Meter::sample(Exercise& exercise, Communicator& comm, int calls) {
  ACCORD_RETURN_IF_ERROR(comm.barrier());
  const auto begin = Clock::now();
  ACCORD_RETURN_IF_ERROR(exercise.repeat(comm, calls));
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return seconds / calls / exercise.operations_per_call();
}

// Increases the number of calls until a sample is long enough to estimate the time of a call; this also warms up.
Result<int> Meter::calls_per_sample(Exercise& exercise, Communicator& comm, double* seconds) {
  ACCORD_RETURN_IF_ERROR(exercise.repeat(comm, 2));
  for (int calls = 1;; calls *= 4) {
    ACCORD_ASSIGN_OR_RETURN(const double mine, sample(exercise, comm, calls));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<double> agreed, slowest({mine}));
    *seconds = agreed[0] * exercise.operations_per_call();
    if (*seconds * calls < kEstimateSeconds && calls < kMaxCallsPerSample) continue;
    return static_cast<int>(
        std::clamp(std::ceil(kSampleSeconds / *seconds), 1.0, static_cast<double>(kMaxCallsPerSample)));
  }
}

Status Meter::check(Exercise& exercise, Contender& contender, Measured& measured) {
  ACCORD_ASSIGN_OR_RETURN(const WrongElements mine, exercise.check(contender.comm));
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(control_.size()));
  const std::uint64_t own[2] = {mine.count, mine.first};
  ACCORD_RETURN_IF_ERROR(
      control_.all_gather(ConstBuffer(own, 2, DType::kUInt64), Buffer{all.data(), all.size(), DType::kUInt64}));
  for (std::size_t r = 0; r < all.size() / 2; ++r) {
    if (all[2 * r] > 0 && measured.wrong == 0)
      measured.first_wrong = fmt::format("position {} of the output of rank {}", all[2 * r + 1], r);
    measured.wrong += all[2 * r];
  }
  return {};
}

// The algorithm of messages is known on rank 0 only, and all ranks need the same answer.
Result<std::string> Meter::algorithm_at_rank_0(const std::string& group, const BenchOperation& operation) {
  std::array<char, 64> name = {};
  if (control_.rank() == 0) last_algorithm(group, operation).copy(name.data(), name.size() - 1);
  ACCORD_RETURN_IF_ERROR(control_.broadcast(Buffer{name.data(), name.size(), DType::kUInt8}, 0));
  return std::string(name.data());
}

Result<std::optional<std::vector<Measured>>> Meter::measure(const ExerciseRequest& request, const Effort& effort,
                                                            std::vector<Contender>& contenders) {
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<Exercise> exercise, Exercise::create(request, control_.rank()));
  std::vector<Series> series;
  for (Contender& contender : contenders) {
    if (interrupted_) return std::optional<std::vector<Measured>>();
    double seconds = 0;
    ACCORD_ASSIGN_OR_RETURN(const int calls, calls_per_sample(*exercise, contender.comm, &seconds));
    series.push_back(plan_series(effort, calls, seconds));
  }
  for (int round = 0; round < effort.rounds && !interrupted_; ++round) {
    for (std::size_t i = 0; i < contenders.size() && !interrupted_; ++i) {
      std::vector<double> mine;
      for (std::size_t s = 0; s < series[i].samples_per_round; ++s) {
        ACCORD_ASSIGN_OR_RETURN(const double seconds, sample(*exercise, contenders[i].comm, series[i].calls));
        mine.push_back(seconds);
      }
      ACCORD_ASSIGN_OR_RETURN(const std::vector<double> agreed, slowest(std::move(mine)));
      series[i].seconds.insert(series[i].seconds.end(), agreed.begin(), agreed.end());
      series[i].round_medians.push_back(median_of(agreed));
    }
  }
  if (interrupted_) return std::optional<std::vector<Measured>>();
  std::vector<Measured> answers;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    std::vector<double>& seconds = series[i].seconds;
    std::sort(seconds.begin(), seconds.end());
    Measured measured{.algorithm = "",
                      .calls = seconds.size() * static_cast<std::uint64_t>(series[i].calls),
                      .samples = seconds.size(),
                      .minimum = seconds.front(),
                      .median = seconds[seconds.size() / 2],
                      .maximum = seconds.back(),
                      .round_medians = series[i].round_medians};
    ACCORD_RETURN_IF_ERROR(check(*exercise, contenders[i], measured));
    ACCORD_ASSIGN_OR_RETURN(measured.algorithm, algorithm_at_rank_0(contenders[i].comm.name(), request.operation));
    answers.push_back(std::move(measured));
  }
  return std::optional(std::move(answers));
}

}  // namespace accord::cli
