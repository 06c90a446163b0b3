// The state and the end of communicators. Their creation is in creation.cpp, their calls are in calls.cpp.
#include "bindings/communicator/communicator.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/arguments/integers.hpp"
#include "bindings/arguments/path.hpp"
#include "bindings/communicator/calls.hpp"
#include "bindings/communicator/creation.hpp"
#include "bindings/communicator/device_window.hpp"
#include "bindings/communicator/window.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

WindowHandle window(CommunicatorHandle& self, nb::handle nbytes, nb::handle timeout) {
  const std::size_t bytes = size_argument(nbytes, "nbytes", "a number of bytes");
  Communicator communicator = self.use();
  CallOptions options;
  options.timeout = duration_argument(timeout);
  return WindowHandle(value_or_raise(run_in_step(
      communicator, [communicator, bytes, options]() mutable { return communicator.window(bytes, options); })));
}

void abort(CommunicatorHandle& self, std::string reason) {
  Communicator communicator = self.use();
  const WithoutGil without_gil;
  communicator.abort(reason);
}

void close_communicator(CommunicatorHandle& self) {
  Communicator communicator = self.use();
  const WithoutGil without_gil;
  communicator.close();
}

void exit(CommunicatorHandle& self, nb::handle type, nb::handle value, nb::handle) {
  if (!type.is_none() && self.use().state() == CommunicatorState::kReady) {
    const std::string error = nb::cast<std::string>(nb::str(value));
    abort(self, "rank " + std::to_string(self.use().rank()) + " left its `with` block with " +
                    nb::type_name(type).c_str() + (error.empty() ? "" : ": " + error));
  }
  close_communicator(self);
}

std::string dump(CommunicatorHandle& self, nb::handle where) {
  const Communicator communicator = self.use();
  const std::string directory = path_argument(where);
  Result<std::string> path("");
  {
    const WithoutGil without_gil;
    path = communicator.dump(directory);
  }
  return value_or_raise(std::move(path));
}

nb::dict counters(CommunicatorHandle& self) {
  const Counters counters = self.use().counters();
  nb::dict by_collective, all;
  for (int c = 0; c < kCollectiveCount; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (counters.of(collective).calls == 0) continue;
    nb::dict of;
    of["calls"] = counters.of(collective).calls;
    of["bytes"] = counters.of(collective).bytes;
    by_collective[nb::cast(to_string(collective))] = of;
  }
  all["failures"] = counters.failures;
  all["waits"] = counters.waits;
  all["queued"] = counters.queued;
  all["by_collective"] = by_collective;
  return all;
}

std::vector<Rank> gone(CommunicatorHandle& self) {
  const Communicator communicator = self.use();
  const WithoutGil without_gil;
  return communicator.gone();
}

nb::object error(CommunicatorHandle& self) {
  const Status status = self.use().status();
  return status.ok() ? nb::object(nb::none()) : exception_for(status);
}

std::string_view state(CommunicatorHandle& self) { return to_string(self.use().state()); }

std::string repr(CommunicatorHandle& self) {
  Communicator* communicator = self.communicator.peek();
  if (communicator == nullptr) return "<accord.Communicator of the parent process>";
  return "<accord.Communicator \"" + communicator->name() + "\", rank " + std::to_string(communicator->rank()) +
         " of " + std::to_string(communicator->size()) + ", " + std::string(to_string(communicator->state())) + ">";
}

}  // namespace

void bind_communicator(nb::module_& module) {
  const auto timeout = nb::arg("timeout") = nb::none();
  nb::class_<CommunicatorHandle> communicator(
      module, "Communicator", nb::is_weak_referenceable(),
      R"(A group of ranks that compute together. Created by create(), from_environment() or split().

Any thread may call any method. Calls on one communicator run in the order in which they were made.

Arrays are objects with the buffer protocol (NumPy arrays, array.array, bytearray, memoryview) or DLPack (torch
tensors). They are used in place and must be contiguous. dtypes: int8 to int64, uint8 to uint64, float16, bfloat16,
float32, float64, float8_e4m3fn, float8_e5m2, complex64, complex128, bool. With dtype="bfloat16", an array of uint16
or of bytes is read as that type. Arrays may be on the CPU or, for calls and device_window(), on a GPU (docs/gpu.md).

Timeouts are seconds (or a timedelta); None stands for the communicator's own.

Failure is sticky: the first failure (a dead peer, a timeout, a mismatch between ranks, abort) ends every pending and
later call with an exception that names the ranks at fault: PeerLost, Timeout, Mismatch, Aborted. Nothing hangs.
Ctrl-C during a call aborts the communicator, because the ranks are out of step then, and raises KeyboardInterrupt;
during Work.wait() the operation continues. As a context manager, it closes at the end of the block, and aborts if the
block raised.)");
  communicator
      .def_prop_ro(
          "rank", [](CommunicatorHandle& self) { return self.use().rank(); }, "This process's rank, counted from 0.")
      .def_prop_ro(
          "size", [](CommunicatorHandle& self) { return self.use().size(); }, "The number of ranks.")
      .def_prop_ro(
          "name", [](CommunicatorHandle& self) { return self.use().name(); }, "The name that appears in errors.")
      .def_prop_ro("state", &state, nb::sig("def state(self) -> typing.Literal['ready', 'failed', 'closed']"),
                   "\"ready\", \"failed\" or \"closed\".")
      .def_prop_ro("error", &error, nb::sig("def error(self) -> Error | None"),
                   "Why the state is \"failed\" or \"closed\", as an exception; None while it is \"ready\".")
      .def("gone", &gone,
           R"(Returns the ranks that have died (known within a second) or closed.

They are in the order in which this rank learned of it. Also works after a failure; returns none once this rank has
closed.)")
      .def("window", &window, nb::arg("nbytes"), nb::kw_only(), timeout,
           nb::sig("def window(self, nbytes: int, *, " ACCORD_TIMEOUT_SIG ") -> Window"),
           R"(Creates memory that all ranks can access: this rank contributes `nbytes`. Collective.

Ranks may contribute different amounts, including 0. All ranks get the window, or none does, and the error names the
rank that failed.)")
      .def("device_window", &device_window, nb::arg("memory"), nb::kw_only(), nb::arg("device") = 0, timeout,
           nb::sig(
               "def device_window(self, memory: int | accord._arrays.ArrayLike, *, device: int = 0, " ACCORD_TIMEOUT_SIG
               ") -> DeviceWindow"),
           R"(Registers GPU memory that calls then use in place. Collective.

memory: the number of bytes to allocate on GPU `device`, or an array of the program's own; the same size on each rank.

All ranks get the window, or none does, and the error names the rank that failed.)")
      .def("lend_nccl", &lend_nccl, nb::arg("pointer"), nb::sig("def lend_nccl(self, pointer: int) -> None"),
           R"(Makes this communicator use an existing NCCL communicator for its calls on GPUs.

pointer: an ncclComm_t over the same ranks in the same order.

Must be called on all ranks, before the first such call. The ncclComm_t still belongs to its owner and must outlive
this communicator. accord.torch.lend_nccl() uses the ncclComm_t of a process group.)")
      .def("abort", &abort, nb::arg("reason") = "abort() was called",
           "Ends every pending and later call on all ranks with Aborted and `reason`. The same happens to groups that "
           "this rank has made from this one by split(), split_ranks() or a mesh, and to theirs; not to those of "
           "grow(), shrink() and reconfigure(), which are this one's successors. May be called from any thread at any "
           "time.")
      .def("close", &close_communicator,
           "Leaves the group: later calls raise Closed, and a peer waiting for this rank gets PeerLost. Idempotent.")
      .def("dump", &dump, nb::arg("directory"), nb::sig("def dump(self, directory: str | os.PathLike[str]) -> str"),
           R"(Writes the contents of the flight recorder to a file in `directory`, and returns the file's path.

The flight recorder holds this rank's last operations and those in progress. The directory is created if absent.
`accord diagnose` reads the files of all ranks. Disturbs nothing: any thread may call it at any time, even after a
failure or close().)")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, typing.Any]"),
           R"(Returns what this rank has done on this communicator so far, in numbers.

by_collective: `calls` and `bytes` of each collective that was called, by its name. The bytes are those of the
caller's buffer or, if it is divided among the ranks, of one part.
failures: calls that failed.
waits: calls that waited for other ranks for tens of microseconds or longer.
queued: calls that were queued behind others, plus all calls that were started asynchronously or in a batch.)")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", &exit, nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none())
      .def("__repr__", &repr);
  bind_creation(communicator);
  bind_calls(module, communicator);
}

}  // namespace accord::python
