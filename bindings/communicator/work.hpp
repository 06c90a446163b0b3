#pragma once
// accord.Work: an operation in progress, with the arrays that it uses.

#include <nanobind/nanobind.h>

#include <optional>

#include "accord/work.hpp"
#include "bindings/communicator/call_arguments.hpp"
#include "bindings/interpreter/process.hpp"

namespace accord::python {

/// A Work and the arrays that it uses, which are held in place until it has ended, even if the Python object is
/// destroyed earlier.
class WorkHandle {
 public:
  WorkHandle(Work work, HeldArguments arguments);
  WorkHandle(WorkHandle&&) noexcept = default;
  ~WorkHandle();

  /// True once the operation has ended; releases the arrays then.
  bool test();
  /// Returns true once the operation has ended successfully, raises its error if it failed, and returns false if it
  /// is still in progress after `timeout`.
  bool wait(std::optional<Duration> timeout);
  void block(Stream stream);
  /// None while the operation is in progress or if it succeeded, else the exception that wait() raises. Never blocks.
  nb::object error();
  /// Calls `callback` with the same value once the operation has ended: immediately, or on accord's own thread.
  void on_end(nb::object callback);

 private:
  void release_arrays();

  ProcessBound<Work> work_;
  HeldArguments arguments_;
};

void bind_work(nb::module_& module);

}  // namespace accord::python
