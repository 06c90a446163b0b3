// The main thread waits in slices and checks for Python's signals between two of them. Other threads, which get no
// signals, wait in one piece. An operation that has ended by the first check costs neither a slice nor the release of
// the GIL.
#include "bindings/communicator/work.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "bindings/arguments/duration.hpp"
#include "bindings/arguments/stream.hpp"
#include "bindings/communicator/in_flight.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {

WorkHandle::WorkHandle(Work work, HeldArguments arguments) : work_(std::move(work)), arguments_(std::move(arguments)) {
  release_ended();
}

WorkHandle::~WorkHandle() {
  if (arguments_.empty()) return;
  Work* work = work_.peek();
  if (work != nullptr && !work->test()) keep_until_ended(*work, std::move(arguments_));
}

bool WorkHandle::test() {
  if (!work_.use("this Work").test()) return false;
  release_arrays();
  return true;
}

bool WorkHandle::wait(std::optional<Duration> timeout) {
  using Clock = std::chrono::steady_clock;
  Work work = work_.use("this Work");
  Duration left = timeout.value_or(Duration::max());
  const Duration slice = on_main_thread() ? Duration(kInterruptSlice) : Duration::max();
  std::optional<Status> status;
  if (work.test()) status = work.wait();
  while (!status) {
    const auto start = Clock::now();
    {
      const WithoutGil without_gil;
      status = work.wait_for(std::min(slice, left));
    }
    if (status) break;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (timeout) left -= std::min<Duration>(left, Clock::now() - start);
    if (timeout && left <= Duration::zero()) return false;
  }
  release_arrays();
  raise_if_error(*status);
  return true;
}

void WorkHandle::block(Stream stream) {
  Work work = work_.use("this Work");
  Status status;
  {
    const WithoutGil without_gil;
    status = work.block(stream);
  }
  raise_if_error(status);
}

// Freeing an array may run Python code that uses this Work again.
void WorkHandle::release_arrays() { const HeldArguments ended = std::exchange(arguments_, {}); }

nb::object WorkHandle::error() {
  const std::optional<Status> status = work_.use("this Work").status();
  return status ? exception_for(*status) : nb::none();
}

void WorkHandle::on_end(nb::object callback) {
  if (PyCallable_Check(callback.ptr()) == 0) throw nb::type_error("callback: expected a callable");
  // The thread that calls the callback, and releases it, may be a C++ thread, and the interpreter may have ended by
  // then.
  const std::shared_ptr<nb::object> held(new nb::object(std::move(callback)), [](const nb::object* object) {
    const PythonCallScope scope;
    if (!scope.may_call()) return;
    const WithGil gil;
    delete object;
  });
  work_.use("this Work").on_end([held](const Status& status) {
    const PythonCallScope scope;
    if (!scope.may_call()) return;
    const WithGil gil;
    try {
      (*held)(exception_for(status));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a callback of accord.Work");
    }
  });
}

void bind_work(nb::module_& module) {
  nb::class_<WorkHandle>(module, "Work",
                         R"(A collective or message that was started and makes progress by itself.

It needs no further calls to progress. It holds its arrays in place until it has ended. It may outlive its
communicator and may be dropped before it has ended; the communicator's next call then reports a failure.)")
      .def("test", &WorkHandle::test,
           "Returns True once the operation has ended, successfully or not. Never blocks, and never raises the "
           "operation's error.")
      .def(
          "block", [](WorkHandle& self, nb::handle stream) { self.block(stream_argument(stream)); },
          nb::arg("stream") = nb::none(), nb::sig("def block(self, " ACCORD_STREAM_SIG ") -> None"),
          R"(Makes later work in `stream` wait until the operation has ended; the caller continues immediately.

This is for a call on a GPU. After a failure `stream` waits for kernels of the operation that still use the buffers,
and the failure is raised. For a call on the CPU, same as wait().)")
      .def_prop_ro("error", &WorkHandle::error, nb::sig("def error(self) -> Error | None"),
                   "The error that wait() raises, once the operation has failed; else None. Never blocks.")
      .def("on_end", &WorkHandle::on_end, nb::arg("callback"),
           nb::sig("def on_end(self, callback: collections.abc.Callable[[Error | None], object]) -> None"),
           R"(Calls `callback` once with the operation's error, or None if it succeeded.

Calls it immediately if the operation has ended, else on the thread that ends it: accord's own, or one that waits for
a Work of the group or starts one.

Other operations stand still meanwhile, so the callback must be short and must not wait for any of them. An exception
that it raises is passed to sys.unraisablehook.)")
      .def(
          "wait", [](WorkHandle& self, nb::handle timeout) { return self.wait(duration_argument(timeout)); },
          nb::arg("timeout") = nb::none(),
          nb::sig("def wait(self, timeout: float | datetime.timedelta | None = None) -> bool"),
          R"(Blocks until the operation has ended. Returns True if it succeeded; raises its error if it failed.

With `timeout` (seconds), blocks no longer than that, and returns False if the operation is still in progress; it is
not canceled. Ctrl-C raises KeyboardInterrupt within 0.1 s; the operation continues.)");
}

}  // namespace accord::python
