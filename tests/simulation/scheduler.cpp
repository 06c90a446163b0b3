// A queue holds when each thread that can run will run, and actions. The scheduler takes the earliest entry, sets the
// clock to its time and resumes the thread, which returns when it waits, yields or is preempted. So the seed, which
// determines how long everything takes, also determines the order.
//
// A thread that is killed is never resumed: nothing on its stack is destroyed, as in a process that is killed.
#include "simulation/scheduler.hpp"

#include <cxxabi.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "simulation/process_image.hpp"

namespace accord::simulation {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr std::size_t kStackBytes = std::size_t{512} << 10;  // pages that are never touched cost nothing
constexpr std::size_t kGuardBytes = 4096;
constexpr int kFirstPid = 1000;

Scheduler* the_scheduler = nullptr;

std::vector<Stack>& free_stacks() {
  static auto& stacks = *new std::vector<Stack>;
  return stacks;
}

Stack acquire_stack() {
  std::vector<Stack>& stacks = free_stacks();
  if (!stacks.empty()) {
    const Stack stack = stacks.back();
    stacks.pop_back();
    return stack;
  }
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
  void* const memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
    std::perror("the simulator has no memory for a stack");
    std::abort();
  }
  return {static_cast<std::byte*>(memory), kStackBytes};
}

}  // namespace

int SimulatorWork::depth = 0;

Scheduler* Scheduler::current() { return the_scheduler; }
Fiber* Scheduler::fiber() { return the_scheduler == nullptr ? nullptr : the_scheduler->running_; }

Scheduler::Scheduler(std::uint64_t seed, const Pace& pace) : random_(seed), pace_(pace) {
  the_scheduler = this;
  switch_variables(nullptr);
}

Scheduler::~Scheduler() {
  for (const auto& fiber : fibers_) release(*fiber);
  the_scheduler = nullptr;
}

Process& Scheduler::start_process(std::string name, int host, std::function<void()> main) {
  const SimulatorWork work;
  Process& process = *processes_.emplace_back(std::make_unique<Process>());
  process.pid = kFirstPid + static_cast<int>(processes_.size());
  process.host = host;
  process.name = std::move(name);
  start_thread(process, [this, main = std::move(main)] {
    main();
    exit();
  }).name = "main";
  return process;
}

Fiber& Scheduler::start_thread(Process& process, std::function<void()> work) {
  const SimulatorWork own;
  Fiber& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
  fiber.id = ++threads_;
  fiber.process = &process;
  fiber.name = "thread";
  fiber.work = std::move(work);
  fiber.stack = acquire_stack();
  fiber.context = make_fcontext(fiber.stack.bottom + fiber.stack.bytes, fiber.stack.bytes, enter);
  push(now_ + random_.spread(kMicrosecond, pace_.wake), &fiber, fiber.generation);
  return fiber;
}

void Scheduler::enter(transfer_t from) {
  Scheduler& scheduler = *the_scheduler;
  scheduler.home_ = from.fctx;
  Fiber& fiber = *scheduler.running_;
  fiber.work();
  fiber.state = Fiber::State::kEnded;
  scheduler.any_ended_ = true;
  scheduler.wake_all(&fiber);
  scheduler.leave();
  std::abort();  // it is never resumed
}

void Scheduler::at(Time time, std::function<void()> action) {
  const SimulatorWork work;
  actions_.push_back(std::move(action));
  push(time, nullptr, actions_.size() - 1);
}

void Scheduler::push(Time time, Fiber* fiber, std::uint64_t which) {
  const SimulatorWork work;
  queue_.push_back({.at = time, .order = ++orders_, .fiber = fiber, .which = which});
  std::push_heap(queue_.begin(), queue_.end(), later);
}

Outcome Scheduler::run(Time horizon) {
  const auto all_ended = [&] { return std::ranges::all_of(processes_, [](const auto& p) { return p->has_ended; }); };
  while (!stopped_ && !queue_.empty() && !all_ended()) {
    std::pop_heap(queue_.begin(), queue_.end(), later);
    const Entry entry = queue_.back();
    queue_.pop_back();
    if (entry.at > horizon) break;
    if (entry.fiber == nullptr) {
      now_ = std::max(now_, entry.at);
      note(entry.which);
      std::exchange(actions_[entry.which], nullptr)();
    } else if (entry.which == entry.fiber->generation && entry.fiber->state != Fiber::State::kEnded) {
      now_ = std::max(now_, entry.at);
      Process& process = *entry.fiber->process;
      if (process.paused_until > now_) {
        push(process.paused_until + random_.spread(kMicrosecond, pace_.preemption), entry.fiber, entry.which);
        continue;
      }
      resume(*entry.fiber);
    }
    if (any_ended_) drop_ended();
  }
  switch_variables(nullptr);
  if (all_ended()) return {.all_ended = true, .stuck = {}};
  return {.all_ended = false, .stuck = describe_threads()};
}

void Scheduler::resume(Fiber& fiber) {
  if (step_action_) {
    step_action_(*fiber.process);
    if (fiber.state == Fiber::State::kEnded) return;
  }
  note(fiber.id ^ static_cast<std::uint64_t>(now_) << 16);
  ++steps_;
  running_ = &fiber;
  fiber.state = Fiber::State::kReady;
  switch_variables(&fiber);
  void* const exceptions = abi::__cxa_get_globals();
  std::memcpy(exceptions, fiber.exceptions, sizeof fiber.exceptions);
  errno = fiber.error;
  fiber.context = jump_fcontext(fiber.context, nullptr).fctx;
  fiber.error = errno;
  std::memcpy(fiber.exceptions, exceptions, sizeof fiber.exceptions);
  std::memset(exceptions, 0, sizeof fiber.exceptions);
  running_ = nullptr;
}

void Scheduler::leave() {
  if (SimulatorWork::is_under_way()) std::abort();  // the simulator's own work never waits
  home_ = jump_fcontext(home_, nullptr).fctx;
}

void Scheduler::preempt() {
  if (running_ == nullptr || SimulatorWork::is_under_way()) return;
  now_ += 20;
  if (!random_.one_in(pace_.preempt_one_in)) return;
  const Time longest = random_.one_in(pace_.late_one_in) ? pace_.late : pace_.preemption;
  sleep_until(now_ + random_.spread(kMicrosecond, longest));
}

void Scheduler::yield() { sleep_until(now_ + random_.spread(kMicrosecond, pace_.yield)); }

void Scheduler::sleep_until(Time time) {
  Fiber& fiber = *running_;
  push(time, &fiber, ++fiber.generation);
  leave();
}

bool Scheduler::block(const char* what, const void* which, Time deadline) {
  Fiber& fiber = *running_;
  fiber.state = Fiber::State::kBlocked;
  fiber.waits = what;
  fiber.waits_for = which;
  fiber.woken = false;
  ++fiber.generation;
  if (deadline != kNever)
    push(std::max(deadline, now_) + random_.spread(kMicrosecond, pace_.wake), &fiber, fiber.generation);
  leave();
  fiber.waits = "";
  fiber.waits_for = nullptr;
  return fiber.woken;
}

void Scheduler::wake(Fiber& fiber) {
  if (fiber.woken) return;
  fiber.woken = true;
  Time time = now_ + random_.spread(kMicrosecond, pace_.wake);
  if (random_.one_in(pace_.late_one_in)) time += random_.spread(kMicrosecond, pace_.late);
  push(time, &fiber, ++fiber.generation);
}

void Scheduler::wake_all(const void* which) {
  for (const auto& fiber : fibers_)
    if (fiber->state == Fiber::State::kBlocked && fiber->waits_for == which) wake(*fiber);
}

void Scheduler::wake_one(const void* which) {
  std::uint64_t waiting = 0;
  const auto waits = [&](const Fiber& fiber) {
    return fiber.state == Fiber::State::kBlocked && fiber.waits_for == which && !fiber.woken;
  };
  for (const auto& fiber : fibers_)
    if (waits(*fiber)) ++waiting;
  if (waiting == 0) return;
  std::uint64_t chosen = random_.below(waiting);
  for (const auto& fiber : fibers_)
    if (waits(*fiber) && chosen-- == 0) return wake(*fiber);
}

void Scheduler::exit() {
  end(*running_->process);
  leave();
  std::abort();  // it is never resumed
}

void Scheduler::kill(Process& process) {
  if (process.has_ended) return;
  process.was_killed = true;
  end(process);
}

void Scheduler::end(Process& process) {
  const SimulatorWork work;
  process.has_ended = true;
  process.ended_at = now_;
  for (const auto& fiber : fibers_)
    if (fiber->process == &process) fiber->state = Fiber::State::kEnded;
  any_ended_ = true;
  for (const auto& action : end_actions_) action(process);
}

void Scheduler::pause(Process& process, Time until) {
  if (process.has_ended || until <= std::max(now_, process.paused_until)) return;
  process.paused += until - std::max(now_, process.paused_until);
  process.paused_until = until;
}

Process* Scheduler::find_process(int pid) const {
  const auto found = std::ranges::find_if(processes_, [&](const auto& process) { return process->pid == pid; });
  return found == processes_.end() ? nullptr : found->get();
}

std::size_t Scheduler::thread_count(const Process& process) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(fibers_, [&](const auto& fiber) { return fiber->process == &process; }));
}

Fiber* Scheduler::find_thread(std::uint64_t id) const {
  const auto found = std::ranges::find_if(fibers_, [&](const auto& fiber) { return fiber->id == id; });
  return found == fibers_.end() || (*found)->state == Fiber::State::kEnded ? nullptr : found->get();
}

void Scheduler::join(std::uint64_t thread) {
  while (Fiber* const fiber = find_thread(thread)) block("a thread to end", fiber);
}

void Scheduler::release(Fiber& fiber) { free_stacks().push_back(fiber.stack); }

// Entries of ended threads stay in the queue, so the threads' objects stay until those are gone.
void Scheduler::drop_ended() {
  any_ended_ = false;
  std::erase_if(
      queue_, [](const Entry& entry) { return entry.fiber != nullptr && entry.fiber->state == Fiber::State::kEnded; });
  std::make_heap(queue_.begin(), queue_.end(), later);
  switch_variables(nullptr);
  for (const auto& fiber : fibers_)
    if (fiber->state == Fiber::State::kEnded) release(*fiber);
  std::erase_if(fibers_, [](const auto& fiber) { return fiber->state == Fiber::State::kEnded; });
}

void Scheduler::note(std::uint64_t what) {
  trace_ = (trace_ ^ what ^ static_cast<std::uint64_t>(now_)) * 0x9e3779b97f4a7c15;
  trace_ ^= trace_ >> 29;
}

std::string Scheduler::describe_threads() const {
  std::string text;
  for (const auto& fiber : fibers_) {
    text += fiber->process->name + ", thread " + fiber->name;
    text += fiber->state == Fiber::State::kBlocked ? std::string(" waits for ") + fiber->waits : " runs";
    text += '\n';
  }
  return text;
}

}  // namespace accord::simulation
