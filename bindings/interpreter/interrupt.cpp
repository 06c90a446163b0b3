// While a scope is active, SIGINT first reaches our handler, which records the scope, wakes a thread and then calls
// the previous handler (Python's, which only sets a flag until the main thread is back in the interpreter). The
// thread checks whether Python's handler is the default one, and then aborts the communicators of that scope if it is
// still active. signal.signal() replaces our handler; each scope checks for that (one system call, 0.1 us) and
// restores ours.
//
// The thread is started by the first scope and, because threads do not survive a fork, again in a forked child.
#include "bindings/interpreter/interrupt.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "base/blocked_signals.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/process.hpp"

namespace accord::python {
namespace {

struct Watch {
  int event = -1;                              ///< an eventfd, from the handler to the thread
  std::atomic<std::uint64_t> active = 0;       ///< number of the active scope, 0 if none
  std::atomic<std::uint64_t> interrupted = 0;  ///< number of the scope in which SIGINT arrived
  std::mutex mutex;                            ///< guards `communicators`
  std::span<Communicator> communicators;       ///< of the active scope
};

using PlainHandler = void (*)(int);
using InfoHandler = void (*)(int, siginfo_t*, void*);

// Belongs to this process; a forked child creates its own and does not touch the parent's.
std::atomic<Watch*> watch = nullptr;
std::atomic<unsigned long> main_thread = 0;
std::uint64_t scopes = 0;  // used by the main thread only
std::atomic<PlainHandler> next_plain = nullptr;
std::atomic<InfoHandler> next_info = nullptr;

void on_interrupt(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (Watch* own = watch.load()) {
    if (const std::uint64_t scope = own->active.load()) {
      own->interrupted.store(scope);
      const std::uint64_t one = 1;
      if (write(own->event, &one, sizeof one) < 0) errno = saved_errno;  // the counter is full: the thread is awake
    }
  }
  errno = saved_errno;
  if (const InfoHandler next = next_info.load()) {
    next(number, info, context);
  } else if (const PlainHandler plain = next_plain.load()) {
    plain(number);
  }
}

/// Installs on_interrupt in front of the current handler. Leaves SIGINT alone if it is ignored or ends the process.
void put_handler_first() {
  struct sigaction now {};
  if (sigaction(SIGINT, nullptr, &now) != 0) return;
  const bool has_info = (now.sa_flags & SA_SIGINFO) != 0;
  if (has_info && now.sa_sigaction == &on_interrupt) return;
  if (!has_info && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
  next_info = has_info ? now.sa_sigaction : nullptr;
  next_plain = has_info ? nullptr : now.sa_handler;
  now.sa_sigaction = &on_interrupt;
  now.sa_flags |= SA_SIGINFO;
  sigaction(SIGINT, &now, nullptr);
}

/// Whether SIGINT raises KeyboardInterrupt. False if the program has set a handler of its own, or is ending.
bool default_handler_is_set() {
  const PythonCallScope scope;
  if (!scope.may_call()) return false;
  const WithGil with_gil;
  try {
    const nb::module_ signals = nb::module_::import_("signal");
    return signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"));
  } catch (const nb::python_error&) {
    return false;
  }
}

void abort_when_interrupted(Watch& own) {
  for (;;) {
    std::uint64_t count = 0;
    if (read(own.event, &count, sizeof count) < 0 && errno != EINTR) return;
    const std::uint64_t scope = own.interrupted.load();
    if (scope != own.active.load() || !default_handler_is_set()) continue;
    std::vector<Communicator> communicators;
    {
      const std::lock_guard lock(own.mutex);
      if (scope == own.active.load()) communicators.assign(own.communicators.begin(), own.communicators.end());
    }
    for (Communicator& communicator : communicators) communicator.abort(interrupted(communicator));
  }
}

/// Returns null if the system has no descriptor left; Ctrl-C then waits for the end of the call.
Watch* start_watch() {
  const int event = eventfd(0, EFD_CLOEXEC);
  if (event < 0) return nullptr;
  auto* own = new Watch;  // never freed: its thread uses it until the process ends
  own->event = event;
  {
    const BlockedSignals blocked;
    std::thread([own] { abort_when_interrupted(*own); }).detach();
  }
  watch = own;
  return own;
}

}  // namespace

std::string interrupted(const Communicator& communicator) {
  return "rank " + std::to_string(communicator.rank()) + " was interrupted from the keyboard (Ctrl-C)";
}

void watch_interrupts() {
  const nb::module_ threading = nb::module_::import_("threading");
  main_thread = nb::cast<unsigned long>(threading.attr("main_thread")().attr("ident"));
  pthread_atfork(nullptr, nullptr, [] {
    watch = nullptr;
    main_thread = PyThread_get_thread_ident();
  });
}

bool on_main_thread() { return PyThread_get_thread_ident() == main_thread.load(std::memory_order_relaxed); }

bool handler_raised() {
  using Clock = std::chrono::steady_clock;
  static Clock::time_point next_check;
  const Clock::time_point now = Clock::now();
  if (now < next_check) return false;
  next_check = now + kInterruptSlice;
  const WithGil with_gil;
  return PyErr_CheckSignals() != 0;
}

InterruptScope::InterruptScope(std::span<Communicator> communicators) {
  if (!on_main_thread()) return;
  Watch* own = watch.load();
  if (own == nullptr) own = start_watch();
  if (own == nullptr) return;
  put_handler_first();
  {
    const std::lock_guard lock(own->mutex);
    outer_communicators_ = std::exchange(own->communicators, communicators);
    outer_scope_ = own->active.exchange(++scopes);
  }
  active_ = true;
  if (PyErr_CheckSignals() != 0) {  // a signal that arrived before this scope was active
    leave();
    throw nb::python_error();
  }
}

InterruptScope::~InterruptScope() { leave(); }

void InterruptScope::leave() {
  if (!std::exchange(active_, false)) return;
  Watch* own = watch.load();
  if (own == nullptr) return;  // the process has forked meanwhile
  const std::lock_guard lock(own->mutex);
  own->communicators = outer_communicators_;
  own->active.store(outer_scope_);
}

}  // namespace accord::python
