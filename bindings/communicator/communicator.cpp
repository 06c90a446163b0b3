// Creation and closing of communicators; their calls are in calls.cpp.
#include "bindings/communicator/communicator.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arguments/integers.hpp"
#include "bindings/arguments/path.hpp"
#include "bindings/communicator/calls.hpp"
#include "bindings/communicator/device_window.hpp"
#include "bindings/communicator/window.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/store/store.hpp"

namespace accord::python {
namespace {

CommunicatorOptions communicator_options(std::string name, nb::handle timeout, std::optional<std::string> transport,
                                         std::string select, std::string hints) {
  CommunicatorOptions options;
  options.name = std::move(name);
  options.timeout = duration_argument(timeout);
  options.transport = std::move(transport);
  options.select = std::move(select);
  options.hints = std::move(hints);
  return options;
}

CommunicatorHandle create_communicator(nb::handle store, Rank rank, int size, std::string name, nb::handle timeout,
                                       std::optional<std::string> transport, std::string select, std::string hints) {
  CommunicatorOptions options =
      communicator_options(std::move(name), timeout, std::move(transport), std::move(select), std::move(hints));
  return CommunicatorHandle(value_or_raise(run_interruptibly([store = store_argument(store), rank, size, options] {
    return Communicator::create(store, rank, size, options);
  })));
}

CommunicatorHandle from_environment(std::string name, nb::handle timeout, std::optional<std::string> transport,
                                    std::string select, std::string hints) {
  CommunicatorOptions options =
      communicator_options(std::move(name), timeout, std::move(transport), std::move(select), std::move(hints));
  return CommunicatorHandle(
      value_or_raise(run_interruptibly([options] { return Communicator::from_environment(options); })));
}

std::optional<CommunicatorHandle> split(CommunicatorHandle& self, int color, int key, std::optional<std::string> name,
                                        nb::handle timeout, std::optional<std::string> transport, std::string select,
                                        std::string hints) {
  Communicator& communicator = self.use();
  const CommunicatorOptions options =
      communicator_options(std::move(name).value_or(communicator.name() + "/" + std::to_string(color)), timeout,
                           std::move(transport), std::move(select), std::move(hints));
  std::optional<Communicator> made =
      value_or_raise(run_collective(communicator, [&] { return communicator.split(color, key, options); }));
  if (!made) return std::nullopt;
  return std::optional<CommunicatorHandle>(CommunicatorHandle(std::move(*made)));
}

std::vector<Rank> ranks_argument(nb::handle given) {
  std::vector<Rank> ranks;
  for (const std::int64_t number : integers_of(given)) {
    if (!std::in_range<Rank>(number)) raise_invalid("ranks: " + std::to_string(number) + " is not a rank");
    ranks.push_back(static_cast<Rank>(number));
  }
  return ranks;
}

std::optional<CommunicatorHandle> split_ranks(CommunicatorHandle& self, nb::handle given,
                                              std::optional<std::string> name, nb::handle timeout,
                                              std::optional<std::string> transport, std::string select,
                                              std::string hints) {
  const std::vector<Rank> ranks = ranks_argument(given);
  Communicator communicator = self.use();
  std::string label = communicator.name();
  for (std::size_t i = 0; i < ranks.size(); ++i) label.append(i == 0 ? "/" : ",").append(std::to_string(ranks[i]));
  CommunicatorOptions options = communicator_options(std::move(name).value_or(label), timeout, std::move(transport),
                                                     std::move(select), std::move(hints));
  std::optional<Communicator> made = value_or_raise(run_in_step(communicator, [communicator, ranks, options]() mutable {
    return communicator.split_ranks(std::span<const Rank>(ranks), options);
  }));
  if (!made) return std::nullopt;
  return std::optional<CommunicatorHandle>(CommunicatorHandle(std::move(*made)));
}

CommunicatorHandle grow(CommunicatorHandle& self, nb::handle store, int added, std::optional<std::string> name,
                        nb::handle timeout, std::optional<std::string> transport, std::string select,
                        std::string hints) {
  Communicator communicator = self.use();
  std::string label = name ? std::move(*name) : communicator.name() + "/grown";
  CommunicatorOptions options =
      communicator_options(std::move(label), timeout, std::move(transport), std::move(select), std::move(hints));
  return CommunicatorHandle(
      value_or_raise(run_in_step(communicator, [communicator, store = store_argument(store), added, options]() mutable {
        return communicator.grow(store, added, options);
      })));
}

CommunicatorHandle join(nb::handle store, std::string name, nb::handle timeout, std::optional<std::string> transport,
                        std::string select, std::string hints) {
  CommunicatorOptions options =
      communicator_options(std::move(name), timeout, std::move(transport), std::move(select), std::move(hints));
  return CommunicatorHandle(value_or_raise(
      run_interruptibly([store = store_argument(store), options] { return Communicator::join(store, options); })));
}

CommunicatorHandle shrink(CommunicatorHandle& self, std::optional<std::string> name, nb::handle timeout) {
  Communicator communicator = self.use();
  const std::string label = name ? std::move(*name) : communicator.name() + "/shrunk";
  CallOptions options;
  options.timeout = duration_argument(timeout);
  return CommunicatorHandle(value_or_raise(
      run_interruptibly([communicator, label, options]() mutable { return communicator.shrink(label, options); })));
}

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

std::string_view state(CommunicatorHandle& self) { return to_string(self.use().state()); }

std::string repr(CommunicatorHandle& self) {
  Communicator* communicator = self.communicator.peek();
  if (communicator == nullptr) return "<accord.Communicator of the parent process>";
  return "<accord.Communicator \"" + communicator->name() + "\", rank " + std::to_string(communicator->rank()) +
         " of " + std::to_string(communicator->size()) + ", " + std::string(to_string(communicator->state())) + ">";
}

}  // namespace

#define ACCORD_MAKE_SIG \
  "name: str = 'world', " ACCORD_TIMEOUT_SIG ", transport: str | None = None, select: str = '', hints: str = ''"

void bind_communicator(nb::module_& module) {
  const auto timeout = nb::arg("timeout") = nb::none();
  const auto only = nb::kw_only();
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
      .def_static(
          "create", &create_communicator, nb::arg("store"), nb::arg("rank"), nb::arg("size"), only,
          nb::arg("name") = "world", timeout, nb::arg("transport") = nb::none(), nb::arg("select") = "",
          nb::arg("hints") = "",
          nb::sig("def create(store: Store | accord._arrays.StoreLike, rank: int, size: int, *, " ACCORD_MAKE_SIG
                  ") -> Communicator"),
          R"(Joins, as rank `rank` of `size`, the group that meets in `store` under `name`.

Collective: returns once all ranks have arrived.

timeout: for creation and, by default, for each call; None: ACCORD_TIMEOUT, or 5 minutes.
transport: "auto", "inproc", "shm" or "ucx"; None: ACCORD_TRANSPORT, or "auto".
select: rules for selecting plans, after those of ACCORD_SELECT.
hints: settings of this group, such as "wait=yield,slot_bytes=64k", in place of those that the environment makes for
all groups; docs/communicator.md lists them.

Raises Timeout, which names the missing ranks, and Mismatch if ranks disagree on the size or options.)")
      .def_static("from_environment", &from_environment, only, nb::arg("name") = "world", timeout,
                  nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
                  nb::sig("def from_environment(*, " ACCORD_MAKE_SIG ") -> Communicator"),
                  R"(Creates a communicator from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

These are set by accord run, by torchrun or by hand. Without them, the variables of Open MPI, PMI or Slurm are used.
Without any of those, creates a group of one rank. The arguments and errors are those of create().)")
      .def_prop_ro(
          "rank", [](CommunicatorHandle& self) { return self.use().rank(); }, "This process's rank, counted from 0.")
      .def_prop_ro(
          "size", [](CommunicatorHandle& self) { return self.use().size(); }, "The number of ranks.")
      .def_prop_ro(
          "name", [](CommunicatorHandle& self) { return self.use().name(); }, "The name that appears in errors.")
      .def_prop_ro("state", &state, nb::sig("def state(self) -> typing.Literal['ready', 'failed', 'closed']"),
                   "\"ready\", \"failed\" or \"closed\".")
      .def("gone", &gone,
           R"(Returns the ranks that have died (known within a second) or closed.

They are in the order in which this rank learned of it. Also works after a failure; returns none once this rank has
closed.)")
      .def("split", &split, nb::arg("color"), nb::arg("key") = 0, nb::arg("name") = nb::none(), only, timeout,
           nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
           nb::sig("def split(self, color: int, key: int = 0, name: str | None = None, "
                   "*, " ACCORD_TIMEOUT_SIG
                   ", transport: str | None = None, select: str = '', hints: str = '') -> Communicator | None"),
           R"(Creates a new communicator for each set of ranks with the same `color`, ordered by (`key`, rank).

Collective over this communicator; a rank with a negative color joins none and gets None. The new communicator is
independent. Its name is this one's and the color ("world/1") unless `name` is given. Options that are not given are
inherited; `select` is appended to this one's. Raises Mismatch, which names the rank, if another rank of the new
communicator has different rules or options, and PeerLost, which names the ranks that were rejected or died.)")
      .def("split_ranks", &split_ranks, nb::arg("ranks"), nb::arg("name") = nb::none(), only, timeout,
           nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
           nb::sig("def split_ranks(self, ranks: collections.abc.Sequence[int], name: str | None = None, "
                   "*, " ACCORD_TIMEOUT_SIG
                   ", transport: str | None = None, select: str = '', hints: str = '') -> Communicator | None"),
           R"(Creates a new communicator of the listed ranks, in the order of the list.

The list must be equal on all of them. Only the listed ranks call it, and neither the order of calls on this
communicator nor its messages are affected. With an empty list, returns None. Groups that are created at the same time
and have two or more ranks in common need different names; the default name is this one's and the list ("world/0,2").
Options that are not given are inherited; `select` is appended to this one's.

Raises InvalidArgument if the list lacks this rank, repeats a rank or contains an invalid one. Mismatch, Timeout and
PeerLost name the ranks that have a different list or different rules or options, did not call, or were rejected or
died. After a failure the ranks may try again.)")
      .def("grow", &grow, nb::arg("store"), nb::arg("added"), nb::arg("name") = nb::none(), only, timeout,
           nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
           nb::sig("def grow(self, store: Store | accord._arrays.StoreLike, added: int, name: str | None = None, "
                   "*, " ACCORD_TIMEOUT_SIG
                   ", transport: str | None = None, select: str = '', hints: str = '') -> Communicator"),
           R"(Creates a new communicator of this one's ranks and `added` more ranks, which call join().

The new ranks call join() with the same store and name. The old ranks keep their ranks; the new ones follow in the
order of their arrival. Called by all ranks of this communicator, like a collective; this communicator itself is
unaffected. The new one's name is this one's and "/grown" unless `name` is given. Raises Timeout, which names the
ranks that did not arrive, and PeerLost, which names the ranks that were rejected or died.)")
      .def_static("join", &join, nb::arg("store"), nb::arg("name"), only, timeout, nb::arg("transport") = nb::none(),
                  nb::arg("select") = "", nb::arg("hints") = "",
                  nb::sig("def join(store: Store | accord._arrays.StoreLike, name: str, *, " ACCORD_TIMEOUT_SIG
                          ", transport: str | None = None, select: str = '', hints: str = '') -> Communicator"),
                  R"(Waits until a communicator grows to `name` in `store`, and joins it.

Raises Timeout if no communicator grew, and PeerLost if its ranks gave up.)")
      .def("shrink", &shrink, nb::arg("name") = nb::none(), nb::kw_only(), timeout,
           nb::sig("def shrink(self, name: str | None = None, *, " ACCORD_TIMEOUT_SIG ") -> Communicator"),
           R"(Creates a new communicator of the remaining ranks, in the order of their ranks.

Each remaining rank calls it once. Ranks that have died or closed are left out immediately. A live rank that has not
called within `timeout` is left out then, and gets Aborted when it does call. This communicator stays as it is and can
be closed. The new one's name is this one's and "/shrunk" unless `name` is given. Needs no store.)")
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
           "Ends every pending and later call on all ranks with Aborted and `reason`. May be called from any thread "
           "at any time.")
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
  bind_calls(module, communicator);
}

}  // namespace accord::python
