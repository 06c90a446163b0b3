// Every rank contributes numbers that depend on its process and the step, so that results show whose data they are
// made of. As soon as a call has ended, in whatever way, its buffers are overwritten: a peer that still reads them
// and reports success has wrong results.
#include "simulation/rank_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/group.hpp"

namespace accord::simulation {
namespace {

constexpr std::int64_t kOverwritten = 0x5a5a5a5a5a5a5a5a;
constexpr int kMostShrinks = 20;
constexpr Time kLatestAbort = 2 * kMillisecond;  // from the begin of a step
constexpr std::size_t kHandleBytes = 256;
/// reconfigure() on other ranks than 0 waits this much longer for the reason why it failed.
constexpr Time kVerdict = 600 * kMillisecond;

template <typename Elements>
Buffer buffer_of(Elements& elements) {
  return {elements.data(), elements.size(), DType::kInt64};
}

template <typename Elements>
void overwrite(Elements&& elements) {
  std::fill(elements.begin(), elements.end(), kOverwritten);
}

}  // namespace

CommunicatorOptions RankProgram::options(std::string name) const {
  return {.name = std::move(name),
          .timeout = Duration(scenario_.timeout),
          .hints = "wait=yield,slot_bytes=4k,recorder_size=16"};
}

void RankProgram::run(Rank rank) {
  if (create(rank)) run_until_end();
}

void RankProgram::join(const std::string& name, std::uint64_t position) {
  position_ = position;
  const Observer::Call call = observer_.begin("join", scenario_.timeout);
  Result<Communicator> made = Communicator::join(world_.store(), options(name));
  observer_.end(call, made.status());
  if (!made.ok()) return;
  communicator_ = *std::move(made);
  run_until_end();
}

void RankProgram::run_until_end() {
  run_steps();
  leave();
  check_that_nothing_is_left();
}

bool RankProgram::create(Rank rank) {
  const Observer::Call call = observer_.begin("create", scenario_.timeout);
  Result<Communicator> made = Communicator::create(world_.store(), rank, scenario_.ranks, options("world"));
  observer_.end(call, made.status());
  if (made.ok()) communicator_ = *std::move(made);
  return made.ok();
}

void RankProgram::run_steps() {
  std::thread aborter;
  while (position_ < scenario_.steps.size()) {
    if (std::exchange(must_abort_[Scheduler::fiber()->process->pid - world_.scheduler().processes()[0]->pid], false))
      aborter = std::thread([communicator = *communicator_,
                             after = world_.scheduler().random().spread(kMicrosecond, kLatestAbort)]() mutable {
        std::this_thread::sleep_for(std::chrono::nanoseconds(after));
        communicator.abort("a fault");
      });
    const Step& step = scenario_.steps[position_];
    const bool shrinks = step.kind == StepKind::kShrink, differs = step.kind == StepKind::kMismatch;
    if (differs) differ(step.count);
    const bool succeeded = !shrinks && !differs && take(step).ok();
    if (succeeded || shrinks || differs) ++position_;
    const bool goes_on = succeeded || recover(shrinks ? Reason::kStep : Reason::kFailure);
    if (aborter.joinable()) aborter.join();
    if (!goes_on) return;
  }
}

bool RankProgram::recover(Reason reason) {
  while (shrinks_ < kMostShrinks) {
    if (reason == Reason::kFailure && communicator_->state() == CommunicatorState::kReady)
      communicator_->abort("this rank recovers");
    reason = Reason::kFailure;
    if (!shrink()) return false;
    std::int64_t next = static_cast<std::int64_t>(position_);
    const Status agreed = watched(*communicator_, "agree", [&] {
      return communicator_->all_reduce(Buffer{&next, 1, DType::kInt64}, ReduceOp::kMax);
    });
    if (!agreed.ok()) continue;
    position_ = static_cast<std::uint64_t>(next);
    return true;
  }
  observer_.complain("the ranks shrink without end");
  return false;
}

bool RankProgram::shrink() {
  const Observer::Call call = observer_.begin("shrink", scenario_.shrink_timeout + scenario_.timeout);
  Result<Communicator> made =
      communicator_->shrink(fmt::format("shrunk {}", ++shrinks_), {.timeout = Duration(scenario_.shrink_timeout)});
  observer_.end(call, made.status());
  observer_.note_shrunk(*communicator_, made);
  leave();
  if (made.ok()) communicator_ = *std::move(made);
  return made.ok();
}

void RankProgram::leave() {
  if (!communicator_) return;
  observer_.note_closed(*communicator_);
  communicator_->close();
  communicator_.reset();
}

// A process that has left all its groups has its progress thread with two descriptors, and the file of the flight
// recorder with the mapping of its first page.
void RankProgram::check_that_nothing_is_left() const {
  constexpr std::size_t kThreads = 2, kDescriptors = 2, kReal = 2;
  constexpr int kLooks = 5000;
  const Process& process = *Scheduler::fiber()->process;
  const Time end = world_.scheduler().now() + kSecond;
  const auto expect = [&](const char* what, const auto& count, std::size_t most) {
    // The progress thread may hold a group for a moment longer.
    for (int look = 0; count() > most && (look < kLooks || world_.scheduler().now() < end); ++look)
      world_.scheduler().yield();
    if (count() > most) observer_.complain(fmt::format("{} {} are left, expected were {}", count(), what, most));
  };
  expect(
      "endpoints", [&] { return world_.residents().count(process); }, 0);
  expect(
      "threads", [&] { return world_.scheduler().thread_count(process); }, kThreads);
  expect(
      "descriptors", [&] { return world_.descriptors().count(process); }, kDescriptors);
  expect(
      "files and mappings", [&] { return world_.descriptors().count_real(process); }, kReal);
}

Status RankProgram::watched(const Communicator& communicator, const char* name, const std::function<Status()>& call) {
  const Observer::Call begun = observer_.begin(name, scenario_.timeout);
  Status status = call();
  observer_.end(communicator, begun, status);
  return status;
}

RankProgram::Values RankProgram::values_of(const Communicator& communicator, Rank rank, std::uint64_t count,
                                           std::uint64_t first) const {
  const topology::Place& place = communicator.group()->topology().place(rank);
  Values values(count);
  std::iota(values.begin(), values.end(),
            place.process * std::int64_t{1'000'003} + static_cast<std::int64_t>(position_ * 7919 + first));
  return values;
}

RankProgram::Values RankProgram::own_values(const Communicator& communicator, std::uint64_t count) const {
  return values_of(communicator, communicator.rank(), count);
}

RankProgram::Values RankProgram::sums(const Communicator& communicator, std::uint64_t count) const {
  Values sums(count);
  for (Rank rank = 0; rank < communicator.size(); ++rank)
    std::ranges::transform(sums, values_of(communicator, rank, count), sums.begin(), std::plus());
  return sums;
}

void RankProgram::compare(const char* name, std::span<const std::int64_t> got, const Values& expected) const {
  const auto [wrong, right] = std::ranges::mismatch(got, expected);
  if (wrong == got.end() && right == expected.end()) return;
  observer_.complain(fmt::format("{} gave {} in place of {} in element {} of {}", name, *wrong, *right,
                                 wrong - got.begin(), expected.size()));
}

Status RankProgram::take(const Step& step) {
  switch (step.kind) {
    case StepKind::kBarrier: return watched(*communicator_, "barrier", [&] { return communicator_->barrier(); });
    case StepKind::kAllReduce: return reduce(*communicator_, step.count);
    case StepKind::kBroadcast: return broadcast(step.count);
    case StepKind::kAllGather: return gather(step.count);
    case StepKind::kReduceScatter: return reduce_scatter(step.count);
    case StepKind::kAllToAll: return exchange(step.count);
    case StepKind::kRing: return ring(step.count);
    case StepKind::kStarted: return started(step.count);
    case StepKind::kThreads: return threads(step.count);
    case StepKind::kWindow: return window(step.count);
    case StepKind::kSplit: return split(step.count);
    case StepKind::kGrow: return grow();
    case StepKind::kReconfigure: return reconfigure();
    case StepKind::kShrink:
    case StepKind::kMismatch: break;  // run_steps() does these
  }
  return {};
}

Status RankProgram::reduce(Communicator& communicator, std::uint64_t count) {
  Values values = own_values(communicator, count);
  const Status status =
      watched(communicator, "all_reduce", [&] { return communicator.all_reduce(buffer_of(values), ReduceOp::kSum); });
  if (status.ok()) compare("all_reduce", values, sums(communicator, count));
  overwrite(values);
  return status;
}

Status RankProgram::broadcast(std::uint64_t count) {
  const Rank root = static_cast<Rank>(position_) % communicator_->size();
  Values values = own_values(*communicator_, count);
  const Status status =
      watched(*communicator_, "broadcast", [&] { return communicator_->broadcast(buffer_of(values), root); });
  if (status.ok()) compare("broadcast", values, values_of(*communicator_, root, count));
  overwrite(values);
  return status;
}

Status RankProgram::gather(std::uint64_t count) {
  Values input = own_values(*communicator_, count);
  Values output(count * static_cast<std::uint64_t>(communicator_->size()));
  const Status status = watched(*communicator_, "all_gather",
                                [&] { return communicator_->all_gather(buffer_of(input), buffer_of(output)); });
  overwrite(input);
  if (status.ok()) {
    Values expected;
    for (Rank rank = 0; rank < communicator_->size(); ++rank)
      std::ranges::copy(values_of(*communicator_, rank, count), std::back_inserter(expected));
    compare("all_gather", output, expected);
  }
  return status;
}

Status RankProgram::reduce_scatter(std::uint64_t count) {
  const std::uint64_t size = static_cast<std::uint64_t>(communicator_->size());
  Values input = own_values(*communicator_, count * size);
  Values output(count);
  const Status status = watched(*communicator_, "reduce_scatter", [&] {
    return communicator_->reduce_scatter(buffer_of(input), buffer_of(output), ReduceOp::kSum);
  });
  overwrite(input);
  if (status.ok()) {
    const Values all = sums(*communicator_, count * size);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(count) * communicator_->rank();
    compare("reduce_scatter", output, Values(begin, begin + static_cast<std::ptrdiff_t>(count)));
  }
  return status;
}

Status RankProgram::exchange(std::uint64_t count) {
  const std::uint64_t size = static_cast<std::uint64_t>(communicator_->size());
  Values input = own_values(*communicator_, count * size);
  Values output(count * size);
  const Status status = watched(*communicator_, "all_to_all",
                                [&] { return communicator_->all_to_all(buffer_of(input), buffer_of(output)); });
  overwrite(input);
  if (status.ok()) {
    const std::uint64_t part = count * static_cast<std::uint64_t>(communicator_->rank());
    Values expected;
    for (Rank rank = 0; rank < communicator_->size(); ++rank)
      std::ranges::copy(values_of(*communicator_, rank, count, part), std::back_inserter(expected));
    compare("all_to_all", output, expected);
  }
  return status;
}

Status RankProgram::ring(std::uint64_t count) {
  const int size = communicator_->size();
  if (size == 1) return {};
  const Rank next = (communicator_->rank() + 1) % size, last = (communicator_->rank() + size - 1) % size;
  Values sent = own_values(*communicator_, count), received(count);
  const Call calls[] = {Call::send(buffer_of(sent), next, 1), Call::recv(buffer_of(received), last, 1)};
  const Status status = watched(*communicator_, "send and recv", [&] { return communicator_->run(calls); });
  overwrite(sent);
  if (status.ok()) compare("recv", received, values_of(*communicator_, last, count));
  return status;
}

Status RankProgram::started(std::uint64_t count) {
  Values buffers[3];
  std::vector<Work> works;
  for (Values& values : buffers) {
    values = own_values(*communicator_, count);
    works.push_back(communicator_->all_reduce_async(buffer_of(values), ReduceOp::kSum));
  }
  Status first;
  for (std::size_t i = 0; i < works.size(); ++i) {
    const Status status = watched(*communicator_, "wait", [&] { return works[i].wait(); });
    if (status.ok()) compare("a started all_reduce", buffers[i], sums(*communicator_, count));
    overwrite(buffers[i]);
    if (first.ok()) first = status;
  }
  return first;
}

Status RankProgram::threads(std::uint64_t count) {
  Status of_ring;
  std::thread other([&] { of_ring = ring(count); });
  const Status of_reduce = reduce(*communicator_, count);
  other.join();
  return of_reduce.ok() ? of_ring : of_reduce;
}

Status RankProgram::window(std::uint64_t count) {
  std::optional<Window> made;
  Status status = watched(*communicator_, "window", [&] {
    Result<Window> window = communicator_->window(count * sizeof(std::int64_t));
    if (window.ok()) made = *std::move(window);
    return window.status();
  });
  if (!status.ok()) return status;
  const std::span values(reinterpret_cast<std::int64_t*>(made->local().data()), count);
  std::ranges::copy(own_values(*communicator_, count), values.begin());
  status = watched(*communicator_, "all_reduce in a window",
                   [&] { return communicator_->all_reduce(buffer_of(values), ReduceOp::kSum); });
  if (!status.ok()) return status;  // a peer that is late may still use the values (docs/windows.md)
  compare("all_reduce in a window", values, sums(*communicator_, count));
  overwrite(values);
  return status;
}

Status RankProgram::split(std::uint64_t count) {
  std::optional<Communicator> half;
  Status status = watched(*communicator_, "split", [&] {
    Result<std::optional<Communicator>> made =
        communicator_->split(communicator_->rank() % 2, 0, fmt::format("half {}", position_));
    if (made.ok()) half = **std::move(made);
    return made.status();
  });
  if (!status.ok()) return status;
  status = reduce(*half, count);
  observer_.note_closed(*half);
  return status;
}

Status RankProgram::grow() {
  const std::string name = fmt::format("grown {:016x}", id_of(*communicator_));
  if (communicator_->rank() == 0) {
    const SimulatorWork work;
    const std::size_t number = world_.scheduler().processes().size();
    world_.scheduler().start_process(fmt::format("process {}", number), 0,
                                     [&world = world_, &scenario = scenario_, &observer = observer_,
                                      must_abort = must_abort_, name = std::string(name), next = position_ + 1] {
                                       RankProgram(world, scenario, observer, must_abort).join(name, next);
                                     });
  }
  const Observer::Call call = observer_.begin("grow", scenario_.timeout);
  Result<Communicator> made = communicator_->grow(world_.store(), 1, options(name));
  observer_.end(call, made.status());
  if (!made.ok()) return made.status();
  leave();
  communicator_ = *std::move(made);
  return {};
}

Status RankProgram::reconfigure() {
  const Result<std::string> handle = communicator_->handle();
  if (!handle.ok()) {
    observer_.complain(fmt::format("there is no handle: {}", handle.status().to_string()));
    return handle.status();
  }
  std::vector<char> mine(handle->begin(), handle->end());
  mine.resize(kHandleBytes);
  std::vector<char> all(kHandleBytes * static_cast<std::size_t>(communicator_->size()));
  const Status gathered = watched(*communicator_, "all_gather", [&] {
    return communicator_->all_gather(ConstBuffer(mine.data(), mine.size(), DType::kUInt8),
                                     Buffer{all.data(), all.size(), DType::kUInt8});
  });
  if (!gathered.ok()) return gathered;
  std::vector<std::string> handles;
  for (std::size_t at = 0; at < all.size(); at += kHandleBytes) handles.emplace_back(&all[at]);
  const Observer::Call call = observer_.begin("reconfigure", scenario_.timeout + kVerdict);
  Result<Communicator> made = communicator_->reconfigure(fmt::format("{:016x}", id_of(*communicator_)), handles,
                                                         {.timeout = Duration(scenario_.timeout)});
  observer_.end(call, made.status());
  if (!made.ok()) return made.status();
  leave();
  communicator_ = *std::move(made);
  return {};
}

void RankProgram::differ(std::uint64_t count) {
  if (communicator_->size() == 1) return;
  Values values(count + (communicator_->rank() == 1 ? 1 : 0));
  const Observer::Call call = observer_.begin("a call that differs", scenario_.timeout);
  const Status status = communicator_->all_reduce(buffer_of(values), ReduceOp::kSum);
  observer_.end(call, status);
  if (status.ok()) observer_.complain("all_reduce succeeded, though a rank has another count");
}

}  // namespace accord::simulation
