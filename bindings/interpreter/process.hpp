#pragma once
// How objects with threads and sockets behind them handle a fork and the interpreter's end.

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "bindings/interpreter/gil.hpp"

namespace accord::python {

/// Installs the handlers for forks and for the interpreter's end. Called once, when the module is loaded.
void watch_process();

/// Returns the number of forks between this process and the one that loaded the module.
std::uint64_t fork_generation();

/// Surrounds a call into Python on a C++ thread: the interpreter does not end during the scope, for a few seconds at
/// most. (After that, Python ends a thread that requests the GIL by unwinding it, even from the middle of the call,
/// which C++ does not survive.)
class PythonCallScope {
 public:
  PythonCallScope();
  ~PythonCallScope();
  PythonCallScope(const PythonCallScope&) = delete;
  PythonCallScope& operator=(const PythonCallScope&) = delete;
  /// False if the interpreter is ending: nothing may be called.
  bool may_call() const { return may_call_; }

 private:
  bool may_call_;
};

/// Throws WrongState for an object created before the fork that created this process. `what`: "this communicator".
[[noreturn]] void raise_forked(std::string_view what);

/// A C++ handle (Communicator, Store, ...) owned by a Python object. In a forked child its threads do not exist and
/// its sockets are the parent's, so there it is neither used (WrongState) nor destroyed (which would notify the peers
/// that it left). Its destructor runs without the GIL, because it may wait for a thread that requests the GIL.
template <typename T>
class ProcessBound {
 public:
  explicit ProcessBound(T value) : value_(std::move(value)) {}
  ProcessBound(ProcessBound&& other) noexcept
      : value_(std::exchange(other.value_, std::nullopt)), generation_(other.generation_) {}
  ProcessBound(const ProcessBound&) = delete;
  ProcessBound& operator=(const ProcessBound&) = delete;
  ~ProcessBound() {
    if (!value_) return;
    if (generation_ != fork_generation()) {
      new T(std::move(*value_));  // leaked on purpose for the rest of the child's life
    } else {
      const WithoutGil without_gil;
      value_.reset();
    }
  }

  /// REQUIRES: the GIL.
  T& use(std::string_view what) {
    if (generation_ != fork_generation()) [[unlikely]]
      raise_forked(what);
    return *value_;
  }

  /// The value if it may be used in this process, else null.
  T* peek() { return value_ && generation_ == fork_generation() ? &*value_ : nullptr; }

 private:
  std::optional<T> value_;
  std::uint64_t generation_ = fork_generation();
};

}  // namespace accord::python
