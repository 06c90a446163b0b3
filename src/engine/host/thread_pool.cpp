// A run is one round: the caller writes what is to be done, increments the round and wakes the workers. The workers
// and the caller take part numbers from one counter until none is left. The caller then waits until every worker has
// left the round, after which the next round may overwrite everything. Workers spin briefly before they sleep, since
// the next round usually starts within microseconds.
#include "engine/host/thread_pool.hpp"

#include <algorithm>
#include <system_error>

#include "base/blocked_signals.hpp"
#include "base/log.hpp"
#include "base/wait.hpp"

namespace accord::engine {

ThreadPool::ThreadPool(int threads) {
  const BlockedSignals blocked;
  workers_.reserve(static_cast<std::size_t>(std::max(threads - 1, 0)));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& failure) {
    log().warn("only {} of {} threads could be started: {}", this->threads(), threads, failure.what());
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Status ThreadPool::run_parts(int parts, Call call, const void* context) {
  if (workers_.empty() || parts <= 1) {
    for (int part = 0; part < parts; ++part) ACCORD_RETURN_IF_ERROR(call(context, part, 0));
    return Status();
  }
  call_ = call;
  context_ = context;
  parts_ = parts;
  failure_ = Status();
  failed_part_ = parts;
  next_part_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  process_parts(0);
  Waiter waiter(WaitPolicy::kSpin);
  while (busy_.load(std::memory_order_acquire) != 0) waiter.pause();
  return failure_;
}

void ThreadPool::work(int thread) {
  std::uint32_t last_round = 0;
  while (true) {
    for (int spins = 0; spins < 2000 && round_.load(std::memory_order_relaxed) == last_round; ++spins) cpu_relax();
    round_.wait(last_round, std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    last_round = round_.load(std::memory_order_acquire);
    process_parts(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::process_parts(int thread) {
  for (int part = next_part_.fetch_add(1, std::memory_order_relaxed); part < parts_;
       part = next_part_.fetch_add(1, std::memory_order_relaxed)) {
    Status status = call_(context_, part, thread);
    if (!status.ok()) record(part, std::move(status));
  }
}

void ThreadPool::record(int part, Status status) {
  while (recording_.test_and_set(std::memory_order_acquire)) cpu_relax();
  if (part < failed_part_) {
    failed_part_ = part;
    failure_ = std::move(status);
  }
  recording_.clear(std::memory_order_release);
}

PartRange part_range(std::int64_t count, std::int64_t grain, int part, int parts) {
  const std::int64_t grains = (count + grain - 1) / grain;
  const std::int64_t first = grains * part / parts * grain;
  const std::int64_t last = grains * (part + 1) / parts * grain;
  return {std::min(first, count), std::min(last, count)};
}

}  // namespace accord::engine
