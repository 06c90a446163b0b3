#pragma once
// Ctrl-C while the main thread is inside a C++ call.

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "accord/communicator.hpp"
#include "base/blocked_signals.hpp"
#include "base/interruption.hpp"
#include "gil.hpp"
#include "status.hpp"

namespace accord::python {

namespace nb = nanobind;

/// How long a wait of the main thread lasts between two looks at Python's signals.
inline constexpr std::chrono::milliseconds kInterruptSlice(50);

/// True on the thread that runs Python's signal handlers.
bool on_main_thread();

/// Around a collective call: if SIGINT comes while it lasts, and Python would raise KeyboardInterrupt, `communicators` are
/// aborted, so that the call ends on all ranks and the interrupt can be raised here. (A rank that left a collective half
/// way would be out of step with the others anyway; a Work can be waited for again instead.) Handlers that the program
/// has set for itself are not second-guessed: they run when the call returns. Costs some 0.2 us; does nothing
/// on other threads. REQUIRES: the GIL, at both ends; `communicators` outlive it.
class InterruptScope {
 public:
  explicit InterruptScope(std::span<Communicator> communicators);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  void leave();

  bool active_ = false;
  // Of the scope around this one, if a call called back into Python.
  std::span<Communicator> outer_communicators_;
  std::uint64_t outer_scope_ = 0;
};

/// Runs `work` without the GIL and gives what it returns. On the main thread it runs in a thread of its own and signal
/// handlers run meanwhile; when one raises, `work` is left behind to end by itself and its result is dropped, so it must
/// own all that it uses. An exception of `work` is thrown here. For calls that are rare and slow (some 50 us are added):
/// joining a group, loading a package.
template <typename Work>
auto run_interruptibly(Work work) {
  using Value = decltype(work());
  if (!on_main_thread()) {
    const WithoutGil without_gil;
    return work();
  }
  struct Shared {
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<Value> value;
    std::exception_ptr exception;
  };
  const auto shared = std::make_shared<Shared>();
  {
    const BlockedSignals blocked;
    std::thread([shared, work = std::make_unique<Work>(std::move(work))]() mutable {
      std::optional<Value> value;
      std::exception_ptr exception;
      try {
        value.emplace((*work)());
      } catch (...) {
        exception = std::current_exception();
      }
      work.reset();  // what it uses is let go of before its end is told, not at some moment after
      const std::lock_guard lock(shared->mutex);
      shared->value = std::move(value);
      shared->exception = exception;
      shared->ended.notify_one();
    }).detach();
  }
  for (;;) {
    {
      const WithoutGil without_gil;
      std::unique_lock lock(shared->mutex);
      const auto ended = [&] { return shared->value.has_value() || shared->exception != nullptr; };
      if (shared->ended.wait_for(lock, kInterruptSlice, ended)) {
        if (shared->exception != nullptr) std::rethrow_exception(shared->exception);
        return std::move(*shared->value);
      }
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

/// True if a signal handler of Python's has raised, which is pending then. Looks every kInterruptSlice. On the main thread, without the
/// GIL.
bool handler_raised();

/// Runs `wait`, which looks at Interruption, without the GIL, and raises its failure. On the main thread signal handlers run
/// meanwhile; when one raises, `wait` ends.
template <typename Wait>
void wait_interruptibly(Wait wait) {
  Status status;
  {
    const WithoutGil without_gil;
    std::optional<Interruption> interruption;
    if (on_main_thread()) interruption.emplace(&handler_raised);
    status = wait();
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  raise_if_error(status);
}

/// Why `communicator` is aborted then.
std::string interrupted(const Communicator& communicator);

/// run_interruptibly() for what the ranks of `communicator` do together: when a signal handler raises it is aborted, since the ranks
/// would be out of step.
template <typename Work>
auto run_in_step(Communicator communicator, Work work) {
  try {
    return run_interruptibly(std::move(work));
  } catch (const nb::python_error&) {
    const WithoutGil without_gil;
    communicator.abort(interrupted(communicator));
    throw;
  }
}

/// Starts to watch. Called once, when the module is loaded.
void watch_interrupts();

}  // namespace accord::python
