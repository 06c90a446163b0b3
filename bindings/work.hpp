#pragma once
// accord.Work: an operation under way, with the arrays that it uses.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "accord/work.hpp"
#include "communicator_calls.hpp"
#include "process.hpp"

namespace accord::python {

/// A Work and the arrays that it uses, which are held in place until it has ended, also if the Python object goes before that.
class WorkHandle {
 public:
  WorkHandle(Work work, std::unique_ptr<CallArguments> arguments);
  WorkHandle(WorkHandle&&) noexcept = default;
  ~WorkHandle();

  /// True once ended; lets the arrays go.
  bool test();
  /// True once ended well, raises if it ended badly, false if it still goes on after `timeout`.
  bool wait(std::optional<Duration> timeout);

 private:
  ProcessBound<Work> work_;
  std::unique_ptr<CallArguments> arguments_;
};

void bind_work(nb::module_& module);

}  // namespace accord::python
