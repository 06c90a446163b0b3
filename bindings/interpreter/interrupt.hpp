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
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {

namespace nb = nanobind;

/// How long the main thread waits between two checks for Python's signals.
inline constexpr std::chrono::milliseconds kInterruptSlice(50);

/// True on the thread that runs Python's signal handlers.
bool on_main_thread();

/// Surrounds a collective call: if SIGINT arrives during the call, and Python would raise KeyboardInterrupt,
/// `communicators` are aborted, so that the call ends on all ranks and the interrupt can be raised here. (A rank that
/// left a collective half way would be out of step with the others anyway; a Work can be waited for again instead.)
/// The program's own handlers are respected: they run when the call returns. Costs some 0.2 us; does nothing on other
/// threads. REQUIRES: the GIL, at both ends; `communicators` outlive it.
class InterruptScope {
 public:
  explicit InterruptScope(std::span<Communicator> communicators);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  void leave();

  bool active_ = false;
  // The enclosing scope, if a call called back into Python.
  std::span<Communicator> outer_communicators_;
  std::uint64_t outer_scope_ = 0;
};

/// Returns `call()`, a collective call of `communicators`, which runs without the GIL inside an InterruptScope.
template <typename CollectiveCall>
auto run_collective(std::span<Communicator> communicators, CollectiveCall call) {
  const InterruptScope interrupts(communicators);
  const WithoutGil without_gil;
  return call();
}

template <typename CollectiveCall>
auto run_collective(Communicator& communicator, CollectiveCall call) {
  return run_collective(std::span(&communicator, 1), std::move(call));
}

/// Runs `work` without the GIL and returns its result. On the main thread it runs in a thread of its own while signal
/// handlers run; when one raises, `work` is left behind to end by itself and its result is dropped, so it must own
/// everything that it uses. An exception of `work` is rethrown here. For calls that are rare and slow (some 50 us are
/// added): joining a group, loading a package.
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
      work.reset();  // releases what it uses before its end is reported, not at some moment after
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

/// True if a Python signal handler has raised; the exception is then pending. Checks every kInterruptSlice. Must be
/// called on the main thread, without the GIL.
bool handler_raised();

/// Runs `wait`, which polls Interruption, without the GIL, and raises its failure. On the main thread, signal
/// handlers run meanwhile; when one raises, `wait` ends.
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

/// Returns the reason with which `communicator` is aborted then.
std::string interrupted(const Communicator& communicator);

/// run_interruptibly() for a joint operation of the ranks of `communicator`: when a signal handler raises, the
/// communicator is aborted, because the ranks would be out of step.
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

/// Installs the fork handler and remembers the main thread. Called once, when the module is loaded.
void watch_interrupts();

}  // namespace accord::python
