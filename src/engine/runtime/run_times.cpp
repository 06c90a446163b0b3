#include "engine/runtime/run_times.hpp"

#include <algorithm>
#include <cstddef>

namespace accord::engine {
namespace {

constexpr std::size_t kMaxRecorded = std::size_t{1} << 20;

}  // namespace

void RunTimes::add_step(Profiling profiling, const StepTime& step) {
  if (profiling == Profiling::kTrace) {
    recorded_.truncated = recorded_.truncated || recorded_.steps.size() == kMaxRecorded;
    if (!recorded_.truncated) recorded_.steps.push_back(step);
    return;
  }
  const std::lock_guard lock(mutex_);
  OpTotals& total = totals_[step.node == nullptr ? "output copy" : step.node->op];
  ++total.calls;
  total.seconds += static_cast<double>(step.end_ns - step.begin_ns) * 1e-9;
}

void RunTimes::add_run(Profiling profiling, std::int64_t begin_ns, std::int64_t end_ns) {
  if (profiling == Profiling::kTrace && !recorded_.truncated) recorded_.runs.push_back({nullptr, begin_ns, end_ns});
}

std::vector<OpTime> RunTimes::totals() const {
  const std::lock_guard lock(mutex_);
  std::vector<OpTime> times;
  for (const auto& [op, total] : totals_) times.push_back({op, total.calls, total.seconds});
  std::sort(times.begin(), times.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace accord::engine
