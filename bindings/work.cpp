// The main thread waits in slices, with a look at Python's signals between two; other threads, which get no signals, in one
// piece. An operation that has ended by the first look costs neither a slice nor the release of the GIL.
#include "work.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "duration.hpp"
#include "gil.hpp"
#include "in_flight.hpp"
#include "interrupt.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace accord::python {

WorkHandle::WorkHandle(Work work, HeldArguments arguments) : work_(std::move(work)), arguments_(std::move(arguments)) {
  let_go_of_ended();
}

WorkHandle::~WorkHandle() {
  if (arguments_.empty()) return;
  Work* work = work_.peek();
  if (work != nullptr && !work->test()) keep_until_ended(*work, std::move(arguments_));
}

bool WorkHandle::test() {
  if (!work_.use("this Work").test()) return false;
  let_go_of_arrays();
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
  let_go_of_arrays();
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

// Freeing an array may run Python code that comes back to this Work.
void WorkHandle::let_go_of_arrays() { const HeldArguments ended = std::exchange(arguments_, {}); }

nb::object WorkHandle::error() {
  const std::optional<Status> status = work_.use("this Work").status();
  return status ? exception_for(*status) : nb::none();
}

void WorkHandle::on_end(nb::object callback) {
  if (PyCallable_Check(callback.ptr()) == 0) throw nb::type_error("callback: it cannot be called");
  // The thread that calls it, and lets it go, may be one of C++, and may come when the interpreter has ended.
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
                         R"(A collective or message that was started and goes on by itself: it progresses without calls.

Holds its arrays in place until it has ended. It may outlive its communicator and may be dropped
before it has ended; a failure is then seen by the communicator's next call.)")
      .def("test", &WorkHandle::test,
           "True once the operation has ended, well or badly. Never blocks, never raises for it.")
      .def(
          "block", [](WorkHandle& self, nb::handle stream) { self.block(stream_argument(stream)); },
          nb::arg("stream") = nb::none(), nb::sig("def block(self, " ACCORD_STREAM_SIG ") -> None"),
          R"(For a call on a GPU: what comes later in `stream` begins once the operation has ended; the caller goes on at once.

For one on the CPU the same as wait().)")
      .def_prop_ro("error", &WorkHandle::error, nb::sig("def error(self) -> Error | None"),
                   "What wait() raises, once the operation has ended badly; else None. Never blocks.")
      .def(
          "on_end", &WorkHandle::on_end, nb::arg("callback"),
          nb::sig("def on_end(self, callback: collections.abc.Callable[[Error | None], object]) -> None"),
          R"(Calls `callback` once with the operation's error, or None: now if it has ended, else on the thread that ends it.

That is accord's own, or one that waits for a work of the group or starts one.

Other operations stand still meanwhile, so it must be short and wait for none of them. What it raises goes to
sys.unraisablehook.)")
      .def(
          "wait", [](WorkHandle& self, nb::handle timeout) { return self.wait(duration_argument(timeout)); },
          nb::arg("timeout") = nb::none(),
          nb::sig("def wait(self, timeout: float | datetime.timedelta | None = None) -> bool"),
          R"(Waits until the operation has ended: True if it ended well; raises its error if it did not.

With `timeout` (seconds) it waits no longer than that and gives False if the operation still goes on, which it
then continues to do. Ctrl-C raises KeyboardInterrupt within 0.1 s and leaves the operation going on.)");
}

}  // namespace accord::python
