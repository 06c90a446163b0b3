#include "bindings/elastic/elastic.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "accord/elastic.hpp"
#include "bindings/arguments/duration.hpp"
#include "bindings/communicator/calls.hpp"
#include "bindings/communicator/creation.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/store/store.hpp"
#include "elastic/members.hpp"

namespace accord::python {
namespace {

/// Runs `work`, which waits for other processes and uses `waiting`; a signal handler that raises closes that.
template <typename Waiting, typename Work>
auto run_until_closed(const std::shared_ptr<Waiting>& waiting, Work work) {
  try {
    return run_interruptibly(std::move(work));
  } catch (const nb::python_error&) {
    const WithoutGil without_gil;
    waiting->close();
    throw;
  }
}

struct ElasticHandle {
  explicit ElasticHandle(ElasticGroup made) : group(std::make_shared<ElasticGroup>(std::move(made))) {}
  ProcessBound<std::shared_ptr<ElasticGroup>> group;
  std::optional<Communicator> current = {};  ///< what the last form() returned

  std::shared_ptr<ElasticGroup>& use() { return group.use("this elastic group"); }
};

struct MembersHandle {
  explicit MembersHandle(std::unique_ptr<elastic::Members> made) : members(std::move(made)) {}
  ProcessBound<std::shared_ptr<elastic::Members>> members;

  std::shared_ptr<elastic::Members>& use() { return members.use("this elastic group"); }
};

ElasticOptions elastic_options(int min_ranks, std::optional<int> max_ranks, std::string name, nb::handle last_call,
                               nb::handle form_timeout) {
  ElasticOptions options{.name = std::move(name), .min_ranks = min_ranks, .communicator = {}};
  if (max_ranks) options.max_ranks = *max_ranks;
  if (const std::optional<Duration> limit = duration_argument(last_call, "last_call")) options.last_call = *limit;
  options.form_timeout = duration_argument(form_timeout, "form_timeout");
  return options;
}

void make_group(ElasticHandle* self, nb::handle store, int min_ranks, std::optional<int> max_ranks, std::string name,
                nb::handle last_call, nb::handle form_timeout, nb::handle timeout, std::optional<std::string> transport,
                std::string select, std::string hints) {
  ElasticOptions options = elastic_options(min_ranks, max_ranks, std::move(name), last_call, form_timeout);
  options.communicator = communicator_options("", timeout, std::move(transport), std::move(select), std::move(hints));
  new (self) ElasticHandle(value_or_raise(
      run_interruptibly([store = store_argument(store), options] { return ElasticGroup::open(store, options); })));
}

ElasticHandle group_from_environment(std::string name, nb::handle last_call, nb::handle form_timeout,
                                     nb::handle timeout, std::optional<std::string> transport, std::string select,
                                     std::string hints) {
  ElasticOptions options = elastic_options(1, std::nullopt, std::move(name), last_call, form_timeout);
  options.communicator = communicator_options("", timeout, std::move(transport), std::move(select), std::move(hints));
  return ElasticHandle(
      value_or_raise(run_interruptibly([options] { return ElasticGroup::from_environment(options); })));
}

std::optional<CommunicatorHandle> form(ElasticHandle& self) {
  const std::shared_ptr<ElasticGroup> group = self.use();
  self.current.reset();
  self.current = value_or_raise(run_until_closed(group, [group] { return group->form(); }));
  if (!self.current) return std::nullopt;
  return std::optional<CommunicatorHandle>(CommunicatorHandle(*self.current));
}

template <typename Call>
auto run_in_group(ElasticHandle& self, Call call) {
  const std::shared_ptr<ElasticGroup> group = self.use();
  if (!self.current) return value_or_raise(call(*group));  // says that there is no group
  return value_or_raise(run_collective(*self.current, [&] { return call(*group); }));
}

template <typename Handle>
void finish(Handle& self) {
  raise_if_error(run_interruptibly([used = self.use()] { return used->finish(); }));
}

template <typename Handle>
void close(Handle& self) {
  const auto waiting = self.use();
  const WithoutGil without_gil;
  waiting->close();
}

MembersHandle open_members(nb::handle store, int min_ranks, std::optional<int> max_ranks, std::string name,
                           nb::handle last_call) {
  ElasticOptions options = elastic_options(min_ranks, max_ranks, std::move(name), last_call, nb::none());
  raise_if_error(elastic::check(options));
  return MembersHandle(value_or_raise(
      run_interruptibly([store = store_argument(store), options] { return elastic::Members::open(store, options); })));
}

MembersHandle members_of_job(std::string name, nb::handle last_call) {
  ElasticOptions options = elastic_options(1, std::nullopt, std::move(name), last_call, nb::none());
  return MembersHandle(
      value_or_raise(run_interruptibly([options]() mutable -> Result<std::unique_ptr<elastic::Members>> {
        ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, elastic::use_environment(options));
        return elastic::Members::open(std::move(store), options);
      })));
}

using RoundTuple = std::tuple<std::int64_t, std::string, std::vector<std::string>>;

std::optional<RoundTuple> next_round(MembersHandle& self, std::string handle, nb::handle timeout) {
  const std::shared_ptr<elastic::Members> members = self.use();
  const Duration limit = duration_argument(timeout).value();
  const std::optional<elastic::Round> round = value_or_raise(
      run_until_closed(members, [members, handle, limit] { return members->next_round(handle, limit); }));
  if (!round) return std::nullopt;
  return RoundTuple(round->number, round->uuid, round->handles);
}

bool others_wait(MembersHandle& self) {
  const std::shared_ptr<elastic::Members> members = self.use();
  Result<bool> wait(false);
  {
    const WithoutGil without_gil;
    wait = members->others_wait();
  }
  return value_or_raise(std::move(wait));
}

}  // namespace

#define ACCORD_ELASTIC_SIG                                                                      \
  "name: str = 'elastic', last_call: float | datetime.timedelta = 10.0, form_timeout: float | " \
  "datetime.timedelta | None = None, " ACCORD_TIMEOUT_SIG                                       \
  ", transport: str | None = "                                                                  \
  "None, "                                                                                      \
  "select: str = '', hints: str = ''"

void bind_elastic(nb::module_& module) {
  const auto only = nb::kw_only();
  const auto name = nb::arg("name") = "elastic";
  const auto last_call = nb::arg("last_call") = 10.0;
  nb::class_<ElasticHandle>(module, "ElasticGroup",
                            R"(A group that goes on without ranks that have died, and takes in new ones.

When a rank has died, or others wait to join, the ranks call form(), which makes a communicator of all processes that
are there. Nothing else has to survive but the store.)")
      .def("__init__", &make_group, nb::arg("store"), nb::arg("min_ranks") = 1, nb::arg("max_ranks") = nb::none(), only,
           name, last_call, nb::arg("form_timeout") = nb::none(), nb::arg("timeout") = nb::none(),
           nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
           nb::sig(
               "def __init__(self, store: Store | accord._arrays.StoreLike, min_ranks: int = 1, max_ranks: int | None "
               "= None, *, " ACCORD_ELASTIC_SIG ") -> None"),
           R"(Takes part in the elastic group `name` of `store`.

min_ranks: fewer form no group. max_ranks: further processes are spares: they wait until there is a place.
last_call: how long the first group waits for more ranks once `min_ranks` are there.
form_timeout: how long form() waits for ranks of the former group that live but do not come, for `min_ranks`, and for
the ranks to connect; None: `timeout`.
timeout, transport, select, hints: of the communicators, as in Communicator.create().)")
      .def_static("from_environment", &group_from_environment, only, name, last_call,
                  nb::arg("form_timeout") = nb::none(), nb::arg("timeout") = nb::none(),
                  nb::arg("transport") = nb::none(), nb::arg("select") = "", nb::arg("hints") = "",
                  nb::sig("def from_environment(*, " ACCORD_ELASTIC_SIG ") -> ElasticGroup"),
                  R"(The same in the store of the job, with the numbers of ranks in ACCORD_ELASTIC=MIN:MAX.

accord run --elastic sets it. Raises InvalidArgument if it is wrong or absent.)")
      .def(
          "form", &form, nb::sig("def form(self) -> Communicator | None"),
          R"(Leaves the current communicator and forms the next one: of its ranks that live, in their order, then of the
processes that wait. Ranks of one host are neighbours.

The calls of ranks that still use the current communicator end with an error, so that they come here as well. Waits as
long as others work in a group that has no place for this process. Returns None once the job is finished.

Raises Timeout if `min_ranks` did not come, Mismatch if their communicators have different options, IoError if the
store is gone, Aborted after close().)")
      .def(
          "others_wait",
          [](ElasticHandle& self) {
            return run_in_group(self, [](ElasticGroup& group) { return group.others_wait(); });
          },
          R"(Returns True if processes wait that have a place in the group, so that all ranks should call form().

Collective: equal on all ranks. Cost: one request of rank 0 to the store, and a broadcast.)")
      .def(
          "most_advanced",
          [](ElasticHandle& self, std::int64_t steps) {
            return run_in_group(self, [steps](ElasticGroup& group) { return group.most_advanced(steps); });
          },
          nb::arg("steps"), R"(Returns the rank whose `steps` is largest, the lowest such rank.

Collective. steps: how far this process is; -1 if it has nothing that others could use.)")
      .def("finish", &finish<ElasticHandle>,
           "Tells all processes that the job is done: form() returns None from now on.")
      .def("close", &close<ElasticHandle>,
           "Leaves for good; the others go on without this process. Any thread may call it, also during form().")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> ElasticGroup"))
      .def(
          "__exit__", [](ElasticHandle& self, nb::args) { close(self); },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def_prop_ro(
          "round", [](ElasticHandle& self) { return self.use()->round(); },
          "How many groups all processes have formed, with the current one.");

  nb::class_<MembersHandle>(
      module, "ElasticMembers",
      "How the processes of an elastic group agree on who is in the next one: for groups of torch.")
      .def_static("open", &open_members, nb::arg("store"), nb::arg("min_ranks"), nb::arg("max_ranks").none(), only,
                  name, last_call,
                  nb::sig("def open(store: Store | accord._arrays.StoreLike, min_ranks: int, max_ranks: int | None, *, "
                          "name: str = 'elastic', last_call: float | datetime.timedelta = 10.0) -> ElasticMembers"))
      .def_static(
          "from_environment", &members_of_job, only, name, last_call,
          nb::sig("def from_environment(*, name: str = 'elastic', last_call: float | datetime.timedelta = 10.0) "
                  "-> ElasticMembers"))
      .def("next_round", &next_round, nb::arg("handle"), nb::arg("timeout"),
           nb::sig(
               "def next_round(self, handle: str, timeout: float | datetime.timedelta) -> tuple[int, str, list[str]] "
               "| None"),
           "Returns number, uuid and handles of a group in which this process is by `handle`; None once the job is "
           "done.")
      .def(
          "report",
          [](MembersHandle& self, std::vector<Rank> ranks) {
            const std::shared_ptr<elastic::Members> members = self.use();
            const WithoutGil without_gil;
            members->report(ranks);
          },
          nb::arg("ranks"), "The group could not be formed, because `ranks` did not come.")
      .def(
          "give_up",
          [](MembersHandle& self) {
            const std::shared_ptr<elastic::Members> members = self.use();
            const WithoutGil without_gil;
            members->give_up();
          },
          "This process does not come to a group that includes it.")
      .def("others_wait", &others_wait, "Returns True if a process waits that has a place. Not collective.")
      .def("finish", &finish<MembersHandle>)
      .def("close", &close<MembersHandle>);
}

}  // namespace accord::python
