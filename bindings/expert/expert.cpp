// Expert groups: how they are created and described, and the balancer. calls.cpp has their calls.
#include "bindings/expert/expert.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/arguments/integers.hpp"
#include "bindings/arguments/stream.hpp"
#include "bindings/communicator/communicator.hpp"
#include "bindings/communicator/window.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

/// Accepts None or "cpu", "cuda", "cuda:1", or a torch device with such a string form.
Device device_argument(nb::handle device) {
  if (device.is_none()) return {};
  const std::string name = nb::cast<std::string>(nb::str(device));
  if (name == "cpu") return {};
  if (name == "cuda") return {DeviceType::kCuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  std::int16_t index = -1;
  const char* const end = name.data() + name.size();
  if (name.starts_with(kPrefix)) {
    const auto [read, error] = std::from_chars(name.data() + kPrefix.size(), end, index);
    if (error == std::errc() && read == end && index >= 0) return {DeviceType::kCuda, index};
  }
  raise_invalid("device is \"" + name + "\", expected \"cpu\" or \"cuda:N\"");
}

GroupHandle* make_group(CommunicatorHandle& communicator, int experts, int top_k, int hidden, int max_tokens_per_rank,
                        std::int64_t max_recv_rows, int alignment, nb::handle dtype, std::string_view overflow,
                        nb::handle placement, std::string_view algorithm, int ranks_per_host, nb::handle staging_bytes,
                        nb::handle device) {
  const auto read = [&] {
    ExpertGroupConfig config{.experts = experts,
                             .top_k = top_k,
                             .hidden = hidden,
                             .max_tokens_per_rank = max_tokens_per_rank,
                             .max_recv_rows = max_recv_rows,
                             .alignment = alignment,
                             .dtype = dtype_argument(dtype).value_or(DType::kBFloat16),
                             .overflow = value_or_raise(overflow_policy_from_string(overflow)),
                             .algorithm = value_or_raise(expert_algorithm_from_string(algorithm)),
                             .ranks_per_host = ranks_per_host,
                             .staging_bytes = size_argument(staging_bytes, "staging_bytes", "a number of bytes"),
                             .device = device_argument(device)};
    if (!placement.is_none() && !nb::isinstance<ExpertPlacement>(placement))
      throw nb::type_error(
          (std::string("placement: expected an accord.ExpertPlacement, got ") + nb::type_name(placement.type()).c_str())
              .c_str());
    if (!placement.is_none()) config.placement = nb::cast<ExpertPlacement>(placement);
    return config;
  };
  Communicator borrowed = communicator.use();
  const auto create = [&](const Result<ExpertGroupConfig>& config) {
    return run_in_step(borrowed, [borrowed, config]() mutable { return ExpertGroup::create(borrowed, config); });
  };
  const ExpertGroupConfig config = make_or_report(
      read, [&](std::string_view why) { (void)create(Status(StatusCode::kInvalidArgument, std::string(why))); });
  return new GroupHandle(value_or_raise(create(config)));
}

nb::dict config_of(GroupHandle& self) {
  const ExpertGroupConfig& config = self.use().config();
  nb::dict fields;
  fields["experts"] = config.experts;
  fields["top_k"] = config.top_k;
  fields["hidden"] = config.hidden;
  fields["max_tokens_per_rank"] = config.max_tokens_per_rank;
  fields["max_recv_rows"] = config.max_recv_rows;
  fields["alignment"] = config.alignment;
  fields["dtype"] = to_string(config.dtype);
  fields["overflow"] = to_string(config.overflow);
  fields["placement"] = config.placement;
  fields["algorithm"] = to_string(config.algorithm);
  fields["ranks_per_host"] = config.ranks_per_host;
  fields["staging_bytes"] = config.staging_bytes;
  fields["device"] = to_string(config.device);
  return fields;
}

nb::dict statistics_of(GroupHandle& self) {
  const ExpertStatistics statistics = self.use().statistics();
  nb::dict fields;
  fields["calls"] = statistics.calls;
  fields["rows_sent"] = statistics.rows_sent;
  fields["rows_received"] = statistics.rows_received;
  fields["bytes_sent"] = statistics.bytes_sent;
  fields["bytes_received"] = statistics.bytes_received;
  fields["dropped"] = statistics.dropped;
  fields["wait_seconds"] = statistics.wait_seconds;
  return fields;
}

}  // namespace

void bind_experts(nb::module_& module) {
  bind_expert_handle(module);
  module.def(
      "balance_experts",
      [](const std::vector<double>& loads, int ranks, int per_rank) {
        return value_or_raise(accord::balance_experts(loads, ranks, per_rank));
      },
      nb::arg("loads"), nb::arg("ranks"), nb::arg("per_rank"),
      R"(Computes a placement of `per_rank` experts on each rank that evens out the measured loads.

The experts of a rank include replicas. It repeatedly adds a replica of the expert whose replicas have the highest
load each, until all places are taken. Then it assigns the replicas, the heaviest first, to the rank with the lowest
load. Equal arguments give equal placements.)");
  nb::class_<GroupHandle> group(
      module, "ExpertGroup", nb::is_weak_referenceable(),
      R"(Ranks that share a set of experts. include/accord/expert_parallel.hpp has the mathematics.

Rank d holds its local experts in ascending order of (global id, replica). The rows of an expert are the tokens that
chose it, in ascending order of (rank, token), padded to the alignment. All ranks make the same calls in the same
order. An invalid argument on one rank is an error on all ranks, which names that rank and leaves the group usable.

Rows are NumPy arrays or torch tensors, in private memory or in a window passed to add_window(), where they are
exchanged without a copy. `dtype` reads rows of uint16 or uint8 as "bfloat16" or "float8_e4m3fn".

With a `device`, arrays are on a GPU (torch, CuPy), and calls put kernels into `stream` and return. The number of rows
that arrive is known only on the GPU until ExpertHandle.fetch(); an invalid argument on one rank is an error on that
rank alone. Between GPUs that do not reach each other's memory, and with algorithm="all_to_all", rows travel over NCCL:
then the first call after prepare() waits until the map is built, and calls cannot be captured into graphs.)");
  group
      .def(nb::new_([](CommunicatorHandle& communicator, int experts, int top_k, int hidden, int max_tokens_per_rank,
                       std::int64_t max_recv_rows, int alignment, nb::handle dtype, std::string_view overflow,
                       nb::handle placement, std::string_view algorithm, int ranks_per_host, nb::handle staging_bytes,
                       nb::handle device) {
             return make_group(communicator, experts, top_k, hidden, max_tokens_per_rank, max_recv_rows, alignment,
                               dtype, overflow, placement, algorithm, ranks_per_host, staging_bytes, device);
           }),
           nb::arg("communicator"), nb::kw_only(), nb::arg("experts"), nb::arg("top_k"), nb::arg("hidden"),
           nb::arg("max_tokens_per_rank"), nb::arg("max_recv_rows") = 0, nb::arg("alignment") = 1,
           nb::arg("dtype") = "bfloat16", nb::arg("overflow") = "fail", nb::arg("placement") = nb::none(),
           nb::arg("algorithm") = "auto", nb::arg("ranks_per_host") = 0, nb::arg("staging_bytes") = 0,
           nb::arg("device") = nb::none(),
           R"(Collective over `communicator`, which is borrowed: it is neither closed nor used for anything else.

experts: number of experts; global ids are 0 to experts - 1.
top_k: maximum number of choices of a token.
hidden: elements of a row.
max_recv_rows: capacity of each rank in rows, padding included; 0: no limit.
dtype: widest dtype of rows.
overflow: "fail", "drop_by_weight" or "drop_by_slot".
placement: a list of global ids for each rank, where an id that is listed several times has replicas; None: equal,
consecutive shares.
algorithm: "auto", "direct", "all_to_all" or "hierarchical"; results are bit-identical for all of them.
staging_bytes: shared memory for rows in transit; 0: a twentieth of max_tokens_per_rank * top_k rows, 256 KiB to 8
MiB.
device: where the arrays of all calls are, "cuda:1" or a torch device; None: the CPU.)")
      .def_prop_ro(
          "rank", [](GroupHandle& self) { return self.use().rank(); }, "This process's rank, counted from 0.")
      .def_prop_ro(
          "size", [](GroupHandle& self) { return self.use().size(); }, "The number of ranks.")
      .def_prop_ro("config", &config_of, nb::sig("def config(self) -> dict[str, object]"),
                   "The group's configuration, with all defaults filled in.")
      .def_prop_ro(
          "local_experts",
          [](GroupHandle& self) {
            const std::span<const int> experts = self.use().local_experts();
            return std::vector<int>(experts.begin(), experts.end());
          },
          "Global ids of this rank's experts, in their order.")
      .def_prop_ro(
          "communicator", [](GroupHandle& self) { return CommunicatorHandle(self.use().communicator()); },
          "The group's own communicator, over which its calls run: it reports failures, and abort() ends calls.")
      .def("statistics", &statistics_of, nb::sig("def statistics(self) -> dict[str, object]"),
           "Returns totals of this rank's calls so far: calls, rows_sent, rows_received, bytes_sent, bytes_received, "
           "dropped. wait_seconds[r]: how much later rank r arrived at calls than this rank.")
      .def(
          "report",
          [](GroupHandle& self) {
            const std::string json = self.use().report_json();
            return nb::module_::import_("json").attr("loads")(nb::str(json.data(), json.size()));
          },
          nb::sig("def report(self) -> dict[str, object]"),
          R"(Returns the totals of all maps so far, and statistics().

The totals are traffic (rows from rank to rank, as a flat list), loads (choices of each expert) and dropped. Written
by each rank with json.dump, this is what `accord moe report` draws.)")
      .def(
          "add_window",
          [](GroupHandle& self, WindowHandle& window) {
            run_call(self, [&, added = window.use()](ExpertGroup& it) { return it.add_window(added); });
          },
          nb::arg("window"),
          "Exchanges arrays in `window` in place from now on; its communicator must have the same ranks. Collective.")
      .def(
          "handle",
          [](GroupHandle& self, int top_k, int alignment) {
            return MapHandle(value_or_raise(self.use().make_handle({.top_k = top_k, .alignment = alignment})));
          },
          nb::kw_only(), nb::arg("top_k") = 0, nb::arg("alignment") = 0,
          "Creates a handle with memory for the largest map. 0 stands for the group's value. All ranks must create "
          "handles in the same order.")
      .def(
          "close",
          [](GroupHandle& self) {
            ExpertGroup& it = self.use();
            const WithoutGil without_gil;
            it.close();
          },
          "Closes the group. Idempotent; the communicator that the group was created from is unaffected.")
      .def("__repr__", [](GroupHandle& self) {
        ExpertGroup* it = self.group.peek();
        if (it == nullptr) return std::string("<accord.ExpertGroup of the parent process>");
        return "<accord.ExpertGroup rank " + std::to_string(it->rank()) + " of " + std::to_string(it->size()) + ", " +
               std::to_string(it->config().experts) + " experts>";
      });
  bind_expert_calls(group);
}

}  // namespace accord::python
