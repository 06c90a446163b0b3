#include "bindings/communicator/creation.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arguments/integers.hpp"
#include "bindings/communicator/calls.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/store/store.hpp"

namespace accord::python {

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

namespace {

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

CommunicatorHandle alone(std::string name, nb::handle timeout, std::optional<std::string> transport, std::string select,
                         std::string hints) {
  CommunicatorOptions options =
      communicator_options(std::move(name), timeout, std::move(transport), std::move(select), std::move(hints));
  return CommunicatorHandle(value_or_raise(run_interruptibly([options] { return Communicator::alone(options); })));
}

std::string handle(CommunicatorHandle& self) {
  const Communicator communicator = self.use();
  Result<std::string> text("");
  {
    const WithoutGil without_gil;
    text = communicator.handle();
  }
  return value_or_raise(std::move(text));
}

CommunicatorHandle reconfigure(CommunicatorHandle& self, std::string uuid, nb::handle given, nb::handle timeout) {
  ReconfigureOptions options;
  options.timeout = duration_argument(timeout);
  const nb::object sets = nb::module_::import_("collections.abc").attr("Set");
  if (nb::isinstance(given, sets)) options.order = RankOrder::kAny;
  const auto refuse = [] { throw nb::type_error("handles: expected a list or a set of texts"); };
  if (nb::isinstance<nb::str>(given)) refuse();
  std::vector<std::string> handles;
  for (const nb::handle handle : nb::list(given)) {
    if (!nb::isinstance<nb::str>(handle)) refuse();
    handles.push_back(nb::cast<std::string>(handle));
  }
  Communicator communicator = self.use();
  return CommunicatorHandle(value_or_raise(run_interruptibly(
      [communicator, uuid, handles, options]() mutable { return communicator.reconfigure(uuid, handles, options); })));
}

}  // namespace

#define ACCORD_MAKE_SIG \
  "name: str = 'world', " ACCORD_TIMEOUT_SIG ", transport: str | None = None, select: str = '', hints: str = ''"

void bind_creation(nb::class_<CommunicatorHandle>& communicator) {
  const auto timeout = nb::arg("timeout") = nb::none();
  const auto only = nb::kw_only();
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
      .def_static("alone", &alone, only, nb::arg("name") = "world", timeout, nb::arg("transport") = nb::none(),
                  nb::arg("select") = "", nb::arg("hints") = "",
                  nb::sig("def alone(*, " ACCORD_MAKE_SIG ") -> Communicator"),
                  R"(Creates a communicator of this process alone, without a store.

It can join others by reconfigure(). The arguments and errors are those of create().)")
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
      .def("handle", &handle, nb::sig("def handle(self) -> str"),
           R"(Returns the text by which other ranks name this one in reconfigure().

They may get it in any way: it holds all that they need to reach this rank, also from other hosts. It is valid for one
reconfiguration, in which this rank may succeed or fail; afterwards handle() returns another one. Works after a
failure.)")
      .def("reconfigure", &reconfigure, nb::arg("uuid"), nb::arg("handles"), only, timeout,
           nb::sig("def reconfigure(self, uuid: str, handles: collections.abc.Sequence[str] | "
                   "collections.abc.Set[str], *, " ACCORD_TIMEOUT_SIG ") -> Communicator"),
           R"(Creates a new communicator of the ranks with the given handles, whatever communicators they are in now.

This one stays as it is and can be closed; it may have failed. The new one has its name and options. All ranks call it
with the same handles, which include their own, and with the same `uuid`, any text that none of them has passed before.
In a list, ranks are numbered by their places; with a set, in the same order on all ranks.

All ranks get the communicator, or all get an error, which names the ranks at fault by their new numbers: PeerLost at
once if a rank has died or its handle has been used; Mismatch if a rank takes part in another reconfiguration, or has
other handles or options; Timeout if a rank did not call in time; InvalidArgument if the uuid was already used or a
text is no handle. Then they may try again, with new handles and another uuid.)");
}

}  // namespace accord::python
