#pragma once
// Threads of simulated processes as fibers of one thread, in virtual time, in an order that a seed determines.

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "simulation/random.hpp"

namespace accord::simulation {

using Time = std::int64_t;  ///< nanoseconds of virtual time
inline constexpr Time kNever = std::numeric_limits<Time>::max();
inline constexpr Time kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond, kSecond = 1000 * kMillisecond;

class Scheduler;

struct Stack {
  std::byte* bottom = nullptr;
  std::size_t bytes = 0;
};

struct Process;

/// One thread of a process.
struct Fiber {
  std::uint64_t id = 0;  ///< from 1, in the order of creation
  Process* process = nullptr;
  std::string name;
  std::function<void()> work;
  Stack stack;
  boost::context::detail::fcontext_t context = nullptr;
  enum class State : std::uint8_t { kReady, kBlocked, kEnded } state = State::kReady;
  std::uint32_t generation = 0;     ///< of its entry in the queue; earlier entries are void
  const char* waits = "";           ///< while it is blocked: for what kind of thing,
  const void* waits_for = nullptr;  ///< and for which one
  bool woken = false;
  int error = 0;                            ///< errno
  std::vector<std::byte> thread_variables;  ///< of the simulated library (process_image.hpp)
  std::uint64_t exceptions[2] = {};         ///< the C++ runtime's list of caught exceptions
};

struct Process {
  int pid = 0;
  int host = 0;
  std::string name;
  bool has_ended = false;
  bool was_killed = false;
  Time ended_at = kNever;
  Time paused_until = 0;
  Time paused = 0;                   ///< all pauses together, including what is still to come of the last one
  std::vector<std::byte> variables;  ///< the simulated library's global variables (process_image.hpp)

  /// For how long it has not run until `now`.
  Time paused_by(Time now) const { return paused - (paused_until > now ? paused_until - now : 0); }
};

/// How threads run apart from faults. Times are the longest; shorter ones are more likely.
struct Pace {
  std::uint64_t preempt_one_in = 20;     ///< calls into the system at which a thread loses its core
  Time preemption = 100 * kMicrosecond;  ///< for how long
  Time yield = 20 * kMicrosecond;        ///< until a thread that yields runs again
  Time wake = 50 * kMicrosecond;         ///< from a wake-up until the thread runs
  std::uint64_t late_one_in = 1000;      ///< of the wake-ups that come late
  Time late = 5 * kMillisecond;          ///< by how much
  std::uint64_t spurious_one_in = 50;    ///< of the waits on conditions that end without a reason
};

struct Outcome {
  bool all_ended = false;
  std::string stuck;  ///< if not all have ended: which threads wait, and for what
};

/// Marks work of the simulator itself on a fiber: it is never preempted, and its memory is not the process's.
class SimulatorWork {
 public:
  SimulatorWork() { ++depth; }
  ~SimulatorWork() { --depth; }
  SimulatorWork(const SimulatorWork&) = delete;
  SimulatorWork& operator=(const SimulatorWork&) = delete;
  static bool is_under_way() { return depth > 0; }

 private:
  static int depth;
};

/// One run. Only one exists at a time.
class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed, const Pace& pace = {});
  ~Scheduler();

  /// Null outside of a run.
  static Scheduler* current();
  /// The fiber that runs; null while the simulator itself runs.
  static Fiber* fiber();

  /// Starts a process whose main thread runs `main`. The process ends when that returns.
  Process& start_process(std::string name, int host, std::function<void()> main);
  Fiber& start_thread(Process& process, std::function<void()> work);
  /// Runs `action` at that time, outside of all processes.
  void at(Time time, std::function<void()> action);
  /// The process runs no further. Its memory stays as it is.
  void kill(Process& process);
  void pause(Process& process, Time until);
  /// Called for each process that has ended, killed or not.
  void on_end(std::function<void(Process&)> action) { end_actions_.push_back(std::move(action)); }
  /// Called with each process before a thread of it runs.
  void on_step(std::function<void(Process&)> action) { step_action_ = std::move(action); }

  /// Runs until all processes have ended, no thread can run any more, or it is `horizon`.
  Outcome run(Time horizon);
  /// Makes run() return.
  void stop() { stopped_ = true; }

  Time now() const { return now_; }
  Random& random() { return random_; }
  Pace& pace() { return pace_; }
  /// A hash of every step so far: which thread ran when.
  std::uint64_t trace() const { return trace_; }
  std::uint64_t steps() const { return steps_; }
  const std::vector<std::unique_ptr<Process>>& processes() const { return processes_; }
  Process* find_process(int pid) const;
  std::size_t thread_count(const Process& process) const;

  // Called on a fiber:

  /// Time that a call of the system takes.
  void advance(Time time) { now_ += time; }
  /// Perhaps lets others run.
  void preempt();
  void yield();
  void sleep_until(Time time);
  /// Waits until something wakes the fiber. Returns false if the time has come first.
  bool block(const char* what, const void* which, Time deadline = kNever);
  /// Ends this process.
  [[noreturn]] void exit();
  /// Waits until the thread has ended.
  void join(std::uint64_t thread);

  // Called anywhere:

  /// Wakes the fibers that are blocked on `which`: all, or one that chance selects.
  void wake_all(const void* which);
  void wake_one(const void* which);

 private:
  struct Entry {
    Time at = 0;
    std::uint64_t order = 0;
    Fiber* fiber = nullptr;   ///< null: an action
    std::uint64_t which = 0;  ///< the fiber's generation, or the number of the action
  };
  static bool later(const Entry& a, const Entry& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }
  void push(Time time, Fiber* fiber, std::uint64_t which);
  void resume(Fiber& fiber);
  void leave();
  void wake(Fiber& fiber);
  Fiber* find_thread(std::uint64_t id) const;
  void end(Process& process);
  void release(Fiber& fiber);
  void drop_ended();
  void note(std::uint64_t what);
  std::string describe_threads() const;
  static void enter(boost::context::detail::transfer_t from);

  Random random_;
  Pace pace_;
  Time now_ = kSecond;
  std::uint64_t trace_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t orders_ = 0;
  std::uint64_t threads_ = 0;
  bool stopped_ = false;
  bool any_ended_ = false;
  std::vector<Entry> queue_;
  std::vector<std::function<void()>> actions_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Fiber>> fibers_;  ///< that have not ended
  std::vector<std::function<void(Process&)>> end_actions_;
  std::function<void(Process&)> step_action_;
  Fiber* running_ = nullptr;
  boost::context::detail::fcontext_t home_ = nullptr;
};

}  // namespace accord::simulation
