#include "bindings/communicator/batch.hpp"

#include <optional>
#include <utility>

#include "bindings/arguments/stream.hpp"
#include "bindings/communicator/calls.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

std::vector<Call> calls_of(const HeldArguments& held) {
  std::vector<Call> calls;
  calls.reserve(held.size());
  for (const auto& arguments : held) calls.push_back(arguments->call);
  return calls;
}

/// Returns the Work that `start` returns; runs `start` without the GIL.
template <typename Start>
WorkHandle start_without_gil(Start start, HeldArguments held) {
  std::optional<Work> work;
  {
    const WithoutGil without_gil;
    work.emplace(start());
  }
  return WorkHandle(std::move(*work), std::move(held));
}

}  // namespace

void PreparedHandle::run() {
  Prepared& prepared = prepared_.use("this Prepared");
  raise_if_error(run_collective(communicator_.use("this communicator"), [&] { return prepared.run(); }));
}

WorkHandle PreparedHandle::start() {
  Prepared& prepared = prepared_.use("this Prepared");
  return start_without_gil([&] { return prepared.start(); }, arguments_);
}

void Batch::run(nb::handle timeout, nb::handle stream) {
  Communicator communicator = this->communicator();
  const CallOptions options{.timeout = duration_argument(timeout), .stream = stream_argument(stream)};
  const HeldArguments held = std::exchange(arguments_, {});
  raise_if_error(
      run_collective(communicator, [&, calls = calls_of(held)] { return communicator.run(calls, options); }));
}

WorkHandle Batch::start(nb::handle timeout, nb::handle stream) {
  Communicator communicator = this->communicator();
  const CallOptions options{.timeout = duration_argument(timeout), .stream = stream_argument(stream)};
  HeldArguments held = std::exchange(arguments_, {});
  const std::vector<Call> calls = calls_of(held);
  return start_without_gil([&] { return communicator.start(calls, options); }, std::move(held));
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
                             R"(Calls that are checked once and run many times. Created by Batch.prepare().

Holds its arrays in place. It may be started again before the last start has ended; its calls then run in order.)")
      .def("run", &PreparedHandle::run, "Runs the calls and returns when all have ended.")
      .def("start", &PreparedHandle::start, nb::sig("def start(self) -> Work"),
           "Starts the calls and returns at once. The Work ends when all of them have.");
  nb::class_<Batch> batch(
      module, "Batch",
      R"(Calls of one communicator that are added first and then run at once. Created by Communicator.batch().

Messages to and from any ranks are in flight at the same time, so ranks may add theirs in any order. Collectives run
one after the other in the order in which they were added. As a context manager, it runs the calls at the end of the
block, and discards them if the block raises. run(), start() and prepare() empty it.)");
  const auto timeout = nb::arg("timeout") = nb::none();
  const auto stream = nb::arg("stream") = nb::none();
  batch
      .def("run", &Batch::run, timeout, stream,
           nb::sig("def run(self, " ACCORD_TIMEOUT_SIG ", " ACCORD_STREAM_SIG ") -> None"),
           "Runs the calls and returns when all have ended. Raises the error of the first call in the list that "
           "failed. If one call is invalid, none begins.")
      .def("start", &Batch::start, timeout, stream,
           nb::sig("def start(self, " ACCORD_TIMEOUT_SIG ", " ACCORD_STREAM_SIG ") -> Work"),
           "Starts the calls and returns at once. The Work ends when all of them have.")
      .def("prepare", &Batch::prepare, timeout, stream,
           nb::sig("def prepare(self, " ACCORD_TIMEOUT_SIG ", " ACCORD_STREAM_SIG ") -> Prepared"),
           "Checks the calls; the Prepared may then be run any number of times. Counts of parts, factors and options "
           "are read now.")
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
      "Creates an empty Batch, for calls that are added first and then run at once.");
  return batch;
}

}  // namespace accord::python
