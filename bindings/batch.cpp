#include "batch.hpp"

#include <optional>
#include <span>
#include <utility>

#include "communicator_calls.hpp"
#include "gil.hpp"
#include "interrupt.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace accord::python {
namespace {

std::vector<Call> calls_of(const HeldArguments& held) {
  std::vector<Call> calls;
  calls.reserve(held.size());
  for (const auto& arguments : held) calls.push_back(arguments->call);
  return calls;
}

/// What `start` gives, which it does without the GIL.
template <typename Start>
WorkHandle started(Start start, HeldArguments held) {
  std::optional<Work> work;
  {
    const WithoutGil without_gil;
    work.emplace(start());
  }
  return WorkHandle(std::move(*work), std::move(held));
}

/// Calls `run` without the GIL; Ctrl-C aborts `communicator`.
template <typename Run>
void finished(Communicator& communicator, Run run) {
  Status status;
  {
    const InterruptScope interrupts(std::span(&communicator, 1));
    const WithoutGil without_gil;
    status = run();
  }
  raise_if_error(status);
}

}  // namespace

void PreparedHandle::run() {
  Prepared& prepared = prepared_.use("this Prepared");
  finished(communicator_.use("this communicator"), [&] { return prepared.run(); });
}

WorkHandle PreparedHandle::start() {
  Prepared& prepared = prepared_.use("this Prepared");
  return started([&] { return prepared.start(); }, arguments_);
}

void Batch::run(nb::handle timeout, nb::handle stream) {
  Communicator communicator = this->communicator();
  const CallOptions options{.timeout = duration_argument(timeout), .stream = stream_argument(stream)};
  const HeldArguments held = std::exchange(arguments_, {});
  finished(communicator, [&, calls = calls_of(held)] { return communicator.run(calls, options); });
}

WorkHandle Batch::start(nb::handle timeout, nb::handle stream) {
  Communicator communicator = this->communicator();
  const CallOptions options{.timeout = duration_argument(timeout), .stream = stream_argument(stream)};
  HeldArguments held = std::exchange(arguments_, {});
  const std::vector<Call> calls = calls_of(held);
  return started([&] { return communicator.start(calls, options); }, std::move(held));
}

PreparedHandle Batch::prepare(nb::handle timeout, nb::handle stream) {
  Communicator communicator = this->communicator();
  const CallOptions options{.timeout = duration_argument(timeout), .stream = stream_argument(stream)};
  HeldArguments held = std::exchange(arguments_, {});
  Prepared prepared = value_or_raise(communicator.prepare(calls_of(held), options));
  return {std::move(communicator), std::move(prepared), std::move(held)};
}

nb::class_<Batch> bind_batch(nb::module_& module, nb::class_<CommunicatorHandle>& communicator) {
  nb::class_<PreparedHandle>(module, "Prepared",
                             R"(Calls that were checked once and run many times; Batch.prepare() gives it.

Holds its arrays in place. It may be started again before the last start has ended: its calls run in order then.)")
      .def("run", &PreparedHandle::run, "Runs the calls to the end of all.")
      .def("start", &PreparedHandle::start, nb::sig("def start(self) -> Work"),
           "Starts the calls and leaves them to go on; the Work ends when all have.");
  nb::class_<Batch> batch(
      module, "Batch",
      R"(Calls of one communicator that are listed first and then run together; Communicator.batch() gives one.

Messages to and from any ranks are under way at the same time, so ranks may list theirs in any order; collectives run in the order
of the list. As a context manager it runs them at the end; if the block raises, it forgets them. run(), start() and prepare() empty it.)");
  const auto timeout = nb::arg("timeout") = nb::none();
  const auto stream = nb::arg("stream") = nb::none();
  batch
      .def("run", &Batch::run, timeout, stream,
           nb::sig("def run(self, " ACCORD_TIMEOUT_SIG ", " ACCORD_STREAM_SIG ") -> None"),
           "Runs the calls to the end of all. Raises for the first in the list that failed; none begins if one is "
           "wrong.")
      .def("start", &Batch::start, timeout, stream,
           nb::sig("def start(self, " ACCORD_TIMEOUT_SIG ", " ACCORD_STREAM_SIG ") -> Work"),
           "Starts the calls and leaves them to go on; the Work ends when all have.")
      .def("prepare", &Batch::prepare, timeout, stream,
           nb::sig("def prepare(self, " ACCORD_TIMEOUT_SIG ", " ACCORD_STREAM_SIG ") -> Prepared"),
           "Checks the calls, to be run as often as they are wanted. What they were listed with is read now.")
      .def("__len__", &Batch::size)
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__",
          [](Batch& self, nb::handle type, nb::handle, nb::handle) {
            if (type.is_none())
              self.run(nb::none(), nb::none());
            else
              self.clear();
          },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none());
  communicator.def(
      "batch", [](nb::object self) { return Batch(std::move(self)); }, nb::sig("def batch(self) -> Batch"),
      "Calls that are listed first and then run together.");
  return batch;
}

}  // namespace accord::python
