// How communicators come and go; their calls are in communicator_calls.cpp.
#include "communicator.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "communicator_calls.hpp"
#include "device_window.hpp"
#include "gil.hpp"
#include "integers.hpp"
#include "interrupt.hpp"
#include "path.hpp"
#include "status.hpp"
#include "store.hpp"
#include "window.hpp"

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
  Result<std::optional<Communicator>> part(std::optional<Communicator>{});
  {
    const InterruptScope interrupts(std::span(&communicator, 1));
    const WithoutGil without_gil;
    part = communicator.split(color, key, options);
  }
  std::optional<Communicator> made = value_or_raise(std::move(part));
  if (!made) return std::nullopt;
  return std::optional<CommunicatorHandle>(CommunicatorHandle(std::move(*made)));
}

std::vector<Rank> ranks_argument(nb::handle given) {
  std::vector<Rank> ranks;
  for (const std::int64_t number : integers_of(given)) {
    if (!std::in_range<Rank>(number)) raise_invalid("ranks: " + std::to_string(number) + " is no rank");
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
  const std::size_t bytes = size_argument(nbytes, "nbytes", "number of bytes");
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
    abort(self, "rank " + std::to_string(self.use().rank()) + " left its `with` block by " +
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
      R"(A group of ranks that compute together. Made by create(), from_environment() or split().

Any thread may call any method; calls on one communicator run in the order they were made. Arrays are whatever has
the buffer protocol (NumPy arrays, array.array, bytearray, memoryview) or DLPack (torch tensors) on the CPU; they are
used where they lie and must be contiguous. dtypes: int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64,
float8_e4m3fn, float8_e5m2, complex64, complex128, bool; with dtype="bfloat16" an array of uint16, or of bytes, is read
as that type. Timeouts are seconds (or a timedelta); None
is the communicator's own.

Failure is sticky: the first one (a dead peer, a timeout, a mismatch between ranks, abort) ends every pending and later
call with an exception that names the ranks at fault: PeerLost, Timeout, Mismatch, Aborted. Nothing hangs. Ctrl-C
during a call aborts the communicator (the ranks are out of step then) and raises KeyboardInterrupt; during
Work.wait() the operation goes on. As a context manager it closes at the end, and aborts if the block raised.)");
  communicator
      .def_static(
          "create", &create_communicator, nb::arg("store"), nb::arg("rank"), nb::arg("size"), only,
          nb::arg("name") = "world", timeout, nb::arg("transport") = nb::none(), nb::arg("select") = "",
          nb::arg("hints") = "",
          nb::sig("def create(store: Store | accord._arrays.StoreLike, rank: int, size: int, *, " ACCORD_MAKE_SIG
                  ") -> Communicator"),
          R"(Joins rank `rank` of `size` that meet in `store` under `name`. Collective: returns when all have come.

timeout: for this and, by default, for each call; ACCORD_TIMEOUT, or 5 minutes, if None. transport: "auto", "inproc"
or "shm"; ACCORD_TRANSPORT, or "auto", if None. select: overrides the selection of plans. hints:
"wait=yield,slot_bytes=64k", for this group in place of what the environment says; docs/communicator.md lists them. Raises Timeout,
naming the ranks that did not come, and Mismatch if ranks disagree on the size or the options.)")
      .def_static(
          "from_environment", &from_environment, only, nb::arg("name") = "world", timeout,
          nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
          nb::sig("def from_environment(*, " ACCORD_MAKE_SIG ") -> Communicator"),
          R"(The same from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (accord run, torchrun, by hand), else from the
variables of Open MPI, PMI or Slurm; without any of them a group of one.)")
      .def_prop_ro(
          "rank", [](CommunicatorHandle& self) { return self.use().rank(); }, "This process's rank, from 0.")
      .def_prop_ro(
          "size", [](CommunicatorHandle& self) { return self.use().size(); }, "How many ranks there are.")
      .def_prop_ro(
          "name", [](CommunicatorHandle& self) { return self.use().name(); }, "The name that errors give.")
      .def_prop_ro("state", &state, nb::sig("def state(self) -> typing.Literal['ready', 'failed', 'closed']"),
                   "\"ready\", \"failed\" or \"closed\".")
      .def(
          "gone", &gone,
          R"(The ranks that have died (known within a second) or closed, in the order in which this one learnt of it, also after a
failure; none once this one has closed.)")
      .def("split", &split, nb::arg("color"), nb::arg("key") = 0, nb::arg("name") = nb::none(), only, timeout,
           nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
           nb::sig("def split(self, color: int, key: int = 0, name: str | None = None, "
                   "*, " ACCORD_TIMEOUT_SIG
                   ", transport: str | None = None, select: str = '', hints: str = '') -> Communicator | None"),
           R"(Ranks with the same `color` form a new communicator, ordered by (`key`, rank). Collective over this one.

A negative color joins none and gets None. Its name is this one's and the color ("world/1"), unless given. What is left open is
inherited, and `select` comes after this one's. It lives on its own. Raises Mismatch, naming the rank, if another of it has other
rules or options, and PeerLost, naming those that were refused or died.)")
      .def("split_ranks", &split_ranks, nb::arg("ranks"), nb::arg("name") = nb::none(), only, timeout,
           nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
           nb::sig("def split_ranks(self, ranks: collections.abc.Sequence[int], name: str | None = None, "
                   "*, " ACCORD_TIMEOUT_SIG
                   ", transport: str | None = None, select: str = '', hints: str = '') -> Communicator | None"),
           R"(The listed ranks form a new communicator, in the order of the list, which is equal on all of them.

Only they call it, and neither the order of calls on this one nor its messages are touched. An empty list gives None. Groups that are
in the making at the same time and have two ranks or more in common need different names; without one the name is this one's
and the list ("world/0,2"). What is left open is inherited, and `select` comes after this one's. Raises InvalidArgument if the
list lacks this rank, or names one twice or one that there is not; Mismatch, Timeout and PeerLost name the ranks that have another list or
other rules, did not call, or were refused or died. After a failure they may try again.)")
      .def(
          "grow", &grow, nb::arg("store"), nb::arg("added"), nb::arg("name") = nb::none(), only, timeout,
          nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
          nb::sig("def grow(self, store: Store | accord._arrays.StoreLike, added: int, name: str | None = None, "
                  "*, " ACCORD_TIMEOUT_SIG
                  ", transport: str | None = None, select: str = '', hints: str = '') -> Communicator"),
          R"(`added` more ranks, which call join() with the same store and name, make a new communicator with the ranks of this one.

These keep their ranks, the others follow in the order in which they come. All ranks of this one call it, like a collective; this one
goes on as it is. Its name is this one's and "/grown", unless given. Raises Timeout, naming the ranks that did not come, and PeerLost, naming those that
were refused or died.)")
      .def_static(
          "join", &join, nb::arg("store"), nb::arg("name"), only, timeout, nb::arg("transport") = nb::none(),
          nb::arg("select") = "", nb::arg("hints") = "",
          nb::sig("def join(store: Store | accord._arrays.StoreLike, name: str, *, " ACCORD_TIMEOUT_SIG
                  ", transport: str | None = None, select: str = '', hints: str = '') -> Communicator"),
          R"(Waits until a communicator grows to `name` in `store`, and joins it. Raises Timeout if none does, and PeerLost if its ranks
gave up.)")
      .def("shrink", &shrink, nb::arg("name") = nb::none(), nb::kw_only(), timeout,
           nb::sig("def shrink(self, name: str | None = None, *, " ACCORD_TIMEOUT_SIG ") -> Communicator"),
           R"(The ranks that are left make a new communicator, in the order of their ranks. Each of them calls it once.

Whoever has died or closed is left out at once; whoever is alive and has not called it within `timeout`, then: it gets
Aborted when it does. This communicator stays as it is and can be closed. Its name is this one's and "/shrunk", unless
given. Needs no store.)")
      .def("window", &window, nb::arg("nbytes"), nb::kw_only(), timeout,
           nb::sig("def window(self, nbytes: int, *, " ACCORD_TIMEOUT_SIG ") -> Window"),
           R"(Memory that the ranks lend each other: `nbytes` of this one, as many as each likes, 0 too. Collective.

All ranks get the window, or none does, and the error names the rank that could not.)")
      .def(
          "device_window", &device_window, nb::arg("memory"), nb::kw_only(), nb::arg("device") = 0, timeout,
          nb::sig(
              "def device_window(self, memory: int | accord._arrays.ArrayLike, *, device: int = 0, " ACCORD_TIMEOUT_SIG
              ") -> DeviceWindow"),
          R"(Memory of a GPU that calls use where it lies: as many bytes as `memory` says, on GPU `device`, or an array of the program's own. Collective.

Equally large on each rank. All ranks get the window, or none does, and the error names who could not.)")
      .def(
          "lend_nccl", &lend_nccl, nb::arg("pointer"), nb::sig("def lend_nccl(self, pointer: int) -> None"),
          R"(Makes the NCCL communicator at `pointer`, an ncclComm_t of the same ranks in the same order, the one of this communicator's calls on GPUs.

On all ranks, before the first such call. It stays its owner's and has to live longer than this. accord.torch.lend_nccl() takes that of a process group.)")
      .def("abort", &abort, nb::arg("reason") = "abort() was called",
           "Ends every pending and later call on all ranks with Aborted and `reason`. From any thread, at any time.")
      .def("close", &close_communicator,
           "Leaves the group: later calls raise Closed; a peer that waits for this rank gets PeerLost. Idempotent.")
      .def(
          "dump", &dump, nb::arg("directory"), nb::sig("def dump(self, directory: str | os.PathLike[str]) -> str"),
          R"(Writes what the flight recorder holds (this rank's last operations, and those under way) to a file in `directory`.

The directory is made if absent; the path of the file is returned, and `accord diagnose` reads the files of all ranks.
Disturbs nothing: any thread may call it at any time, also after a failure or close().)")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, typing.Any]"),
           R"(What this rank has done on this communicator so far, in numbers.

`by_collective`: for each collective that was called, by name, `calls` and `bytes` (of the caller's buffer; of one part where it
is divided among the ranks); `failures`: calls that ended in an error; `waits`: calls that waited for others for tens of
microseconds or longer; `queued`: calls that found others before them, and all that were started asynchronously or several at once.)")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", &exit, nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none())
      .def("__repr__", &repr);
  bind_calls(module, communicator);
}

}  // namespace accord::python
