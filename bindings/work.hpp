#pragma once
// accord.Work: an operation under way, with the arrays that it uses.

#include <nanobind/nanobind.h>

#include <optional>

#include "accord/work.hpp"
#include "call_arguments.hpp"
#include "process.hpp"

namespace accord::python {

/// A Work and the arrays that it uses, which are held in place until it has ended, also if the Python object goes before that.
class WorkHandle {
 public:
  WorkHandle(Work work, HeldArguments arguments);
  WorkHandle(WorkHandle&&) noexcept = default;
  ~WorkHandle();

  /// True once ended; lets the arrays go.
  bool test();
  /// True once ended well, raises if it ended badly, false if it still goes on after `timeout`.
  bool wait(std::optional<Duration> timeout);
  void block(Stream stream);
  /// None while it goes on or if it ended well, else what wait() raises. Never blocks.
  nb::object error();
  /// Calls `callback` with the same once it has ended: now, or on accord's own thread.
  void on_end(nb::object callback);

 private:
  void let_go_of_arrays();

  ProcessBound<Work> work_;
  HeldArguments arguments_;
};

void bind_work(nb::module_& module);

}  // namespace accord::python
