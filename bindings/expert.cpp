// A call holds its arrays in place, reads them as buffers and runs without the GIL, as the communicator's calls do.
// The C++ side checks the arrays.
#include "expert.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "communicator.hpp"
#include "integers.hpp"
#include "interrupt.hpp"
#include "process.hpp"
#include "status.hpp"
#include "stream.hpp"
#include "window.hpp"

namespace accord::python {
namespace {

struct GroupHandle {
  explicit GroupHandle(ExpertGroup made) : group(std::move(made)) {}
  ProcessBound<ExpertGroup> group;
  ExpertGroup& use() { return group.use("this expert group"); }
};

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

/// Elements of a row of each kind of array.
struct Widths {
  Widths(const ExpertGroup& group, const MapHandle& handle)
      : hidden(group.config().hidden), scales((hidden + 127) / 128), top_k(handle.handle.top_k()) {}
  int hidden, scales, top_k;
};

/// Notifies the ranks that arrive at the call that this one cannot make it.
void decline(ExpertGroup& group, const ExpertHandle& handle, bool prepares, std::string_view why) {
  Communicator communicator = group.communicator();
  const InterruptScope interrupts(std::span(&communicator, 1));
  const WithoutGil without_gil;
  (void)group.decline(handle, prepares, {StatusCode::kInvalidArgument, std::string(why)});
}

/// Returns `make()`. If it throws, calls `tell` with the reason first.
template <typename Make, typename Tell>
auto made_or_told(Make make, Tell tell) {
  try {
    return make();
  } catch (nb::python_error& error) {
    tell(error.what());
    throw;
  } catch (const std::exception& error) {
    tell(error.what());
    throw;
  }
}

/// Does the same for a call of a group. On GPUs no other rank is waiting at this point.
template <typename Make>
auto arguments_of(GroupHandle& self, const MapHandle& handle, bool prepares, Make make) {
  ExpertGroup& group = self.use();
  if (group.config().device.type != DeviceType::kCpu) return make();
  return made_or_told(make, [&](std::string_view why) { decline(group, handle.handle, prepares, why); });
}

template <typename Run>
void run_call(GroupHandle& self, Run run) {
  ExpertGroup& group = self.use();
  Communicator communicator = group.communicator();
  Status status;
  {
    const InterruptScope interrupts(std::span(&communicator, 1));
    const WithoutGil without_gil;
    status = run(group);
  }
  raise_if_error(status);
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
                             .staging_bytes = size_argument(staging_bytes, "staging_bytes", "number of bytes"),
                             .device = device_argument(device)};
    if (!placement.is_none()) config.placement = nb::cast<ExpertPlacement>(placement);
    return config;
  };
  Communicator borrowed = communicator.use();
  const auto create = [&](const Result<ExpertGroupConfig>& config) {
    return run_in_step(borrowed, [borrowed, config]() mutable { return ExpertGroup::create(borrowed, config); });
  };
  const ExpertGroupConfig config = made_or_told(
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

#define ACCORD_MAYBE_SIG ACCORD_ROWS_SIG " | None = None"
#define ACCORD_DTYPE_SIG "accord._arrays.DTypeName | None = None"

void bind_group_calls(nb::class_<GroupHandle>& group) {
  group
      .def(
          "prepare",
          [](GroupHandle& self, MapHandle& handle, nb::handle ids, nb::handle weights, nb::handle stream) {
            Arrays arrays(self.use().config().device);
            const auto routing = arguments_of(self, handle, true, [&] {
              const int top_k = handle.handle.top_k();
              return ExpertRouting{arrays.read(ids, "ids", top_k), arrays.read(weights, "weights", top_k),
                                   stream_argument(stream)};
            });
            run_call(self, [&](ExpertGroup& it) { return it.prepare(handle.handle, routing); });
          },
          nb::arg("handle"), nb::arg("ids"), nb::arg("weights") = nb::none(), nb::kw_only(),
          nb::arg("stream") = nb::none(),
          nb::sig("def prepare(self, handle: ExpertHandle, ids: " ACCORD_ROWS_SIG ", weights: " ACCORD_MAYBE_SIG
                  ", *, " ACCORD_STREAM_SIG ") -> None"),
          R"(Makes `handle` the routing map of `ids`. Collective.

ids: [tokens, top_k] int32 or int64; -1 is no choice.
weights: [tokens, top_k] float32; required by overflow="drop_by_weight".

Raises ResourceExhausted on all ranks if a rank would get more rows than max_recv_rows and overflow is "fail"; the
group stays usable.)")
      .def(
          "dispatch",
          [](GroupHandle& self, MapHandle& handle, nb::handle tokens, nb::handle recv_tokens, nb::handle weights,
             nb::handle recv_weights, nb::handle scales, nb::handle recv_scales, nb::handle dtype, nb::handle stream) {
            Arrays arrays(self.use().config().device);
            const auto call = arguments_of(self, handle, false, [&] {
              const Widths widths(self.use(), handle);
              arrays.set_dtype(dtype);
              return ExpertDispatch{.tokens = arrays.rows(tokens, "tokens", widths.hidden),
                                    .scales = arrays.read(scales, "scales", widths.scales),
                                    .weights = arrays.read(weights, "weights", widths.top_k),
                                    .recv_tokens = arrays.rows_out(recv_tokens, "recv_tokens", widths.hidden),
                                    .recv_scales = arrays.write(recv_scales, "recv_scales", widths.scales),
                                    .recv_weights = arrays.write(recv_weights, "recv_weights", 1),
                                    .stream = stream_argument(stream)};
            });
            run_call(self, [&](ExpertGroup& it) { return it.dispatch(handle.handle, call); });
          },
          nb::arg("handle"), nb::arg("tokens"), nb::arg("recv_tokens"), nb::kw_only(), nb::arg("weights") = nb::none(),
          nb::arg("recv_weights") = nb::none(), nb::arg("scales") = nb::none(), nb::arg("recv_scales") = nb::none(),
          nb::arg("dtype") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig("def dispatch(self, handle: ExpertHandle, tokens: " ACCORD_ROWS_SIG ", recv_tokens: " ACCORD_ROWS_SIG
                  ", *, weights: " ACCORD_MAYBE_SIG ", recv_weights: " ACCORD_MAYBE_SIG ", scales: " ACCORD_MAYBE_SIG
                  ", recv_scales: " ACCORD_MAYBE_SIG ", dtype: " ACCORD_DTYPE_SIG ", " ACCORD_STREAM_SIG ") -> None"),
          R"(recv_tokens[slot] = tokens[t], recv_weights[slot] = weights[t, k]; padding is zero. Collective.

tokens: [tokens, hidden].
recv_tokens: [at least recv_rows, hidden]; rows from recv_rows on are not touched.
weights: [tokens, top_k], float32 or float64.
recv_weights: [at least recv_rows], float32 or float64.
scales, recv_scales: for float8 rows, [tokens, ceil(hidden / 128)] and [at least recv_rows, ceil(hidden / 128)],
float32.)")
      .def(
          "combine",
          [](GroupHandle& self, MapHandle& handle, nb::handle expert_out, nb::handle result, nb::handle weights,
             nb::handle scales, nb::handle dtype, nb::handle result_dtype, nb::handle stream) {
            Arrays arrays(self.use().config().device);
            const auto call = arguments_of(self, handle, false, [&] {
              const Widths widths(self.use(), handle);
              arrays.set_dtype(dtype);
              ExpertCombine made{.expert_out = arrays.rows(expert_out, "expert_out", widths.hidden),
                                 .scales = arrays.read(scales, "scales", widths.scales),
                                 .weights = arrays.read(weights, "weights", widths.top_k),
                                 .result = {},
                                 .stream = stream_argument(stream)};
              if (!result_dtype.is_none()) arrays.set_dtype(result_dtype);
              made.result = arrays.rows_out(result, "result", widths.hidden);
              return made;
            });
            run_call(self, [&](ExpertGroup& it) { return it.combine(handle.handle, call); });
          },
          nb::arg("handle"), nb::arg("expert_out"), nb::arg("result"), nb::kw_only(), nb::arg("weights") = nb::none(),
          nb::arg("scales") = nb::none(), nb::arg("dtype") = nb::none(), nb::arg("result_dtype") = nb::none(),
          nb::arg("stream") = nb::none(),
          nb::sig("def combine(self, handle: ExpertHandle, expert_out: " ACCORD_ROWS_SIG ", result: " ACCORD_ROWS_SIG
                  ", *, weights: " ACCORD_MAYBE_SIG ", scales: " ACCORD_MAYBE_SIG ", dtype: " ACCORD_DTYPE_SIG
                  ", result_dtype: " ACCORD_DTYPE_SIG ", " ACCORD_STREAM_SIG ") -> None"),
          R"(result[t] = sum of expert_out[slot] over the choices of t; zero if there are none. Collective.

The sum is computed in the canonical order.

weights: [tokens, top_k]; rows are multiplied by them before they are added.
result: has the dtype of expert_out, or float32, float16 or bfloat16.)")
      .def(
          "dispatch_backward",
          [](GroupHandle& self, MapHandle& handle, nb::handle grad, nb::handle grad_tokens,
             nb::handle grad_recv_weights, nb::handle grad_weights, nb::handle dtype, nb::handle stream) {
            Arrays arrays(self.use().config().device);
            const auto call = arguments_of(self, handle, false, [&] {
              const Widths widths(self.use(), handle);
              arrays.set_dtype(dtype);
              return ExpertDispatchBackward{.grad = arrays.rows(grad, "grad", widths.hidden),
                                            .grad_recv_weights = arrays.read(grad_recv_weights, "grad_recv_weights", 1),
                                            .grad_tokens = arrays.rows_out(grad_tokens, "grad_tokens", widths.hidden),
                                            .grad_weights = arrays.write(grad_weights, "grad_weights", widths.top_k),
                                            .stream = stream_argument(stream)};
            });
            run_call(self, [&](ExpertGroup& it) { return it.dispatch_backward(handle.handle, call); });
          },
          nb::arg("handle"), nb::arg("grad"), nb::arg("grad_tokens"), nb::kw_only(),
          nb::arg("grad_recv_weights") = nb::none(), nb::arg("grad_weights") = nb::none(),
          nb::arg("dtype") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig("def dispatch_backward(self, handle: ExpertHandle, grad: " ACCORD_ROWS_SIG
                  ", grad_tokens: " ACCORD_ROWS_SIG ", *, grad_recv_weights: " ACCORD_MAYBE_SIG
                  ", grad_weights: " ACCORD_MAYBE_SIG ", dtype: " ACCORD_DTYPE_SIG ", " ACCORD_STREAM_SIG ") -> None"),
          R"(grad_tokens[t] = sum of grad[slot] over the choices of t. Collective.

grad_weights[t, k] = grad_recv_weights[slot], zero without a choice.)")
      .def(
          "combine_backward",
          [](GroupHandle& self, MapHandle& handle, nb::handle grad, nb::handle grad_expert_out, nb::handle dtype,
             nb::handle stream) {
            Arrays arrays(self.use().config().device);
            const auto call = arguments_of(self, handle, false, [&] {
              const Widths widths(self.use(), handle);
              arrays.set_dtype(dtype);
              return ExpertCombineBackward{
                  .grad = arrays.rows(grad, "grad", widths.hidden),
                  .grad_expert_out = arrays.rows_out(grad_expert_out, "grad_expert_out", widths.hidden),
                  .stream = stream_argument(stream)};
            });
            run_call(self, [&](ExpertGroup& it) { return it.combine_backward(handle.handle, call); });
          },
          nb::arg("handle"), nb::arg("grad"), nb::arg("grad_expert_out"), nb::kw_only(), nb::arg("dtype") = nb::none(),
          nb::arg("stream") = nb::none(),
          nb::sig("def combine_backward(self, handle: ExpertHandle, grad: " ACCORD_ROWS_SIG
                  ", grad_expert_out: " ACCORD_ROWS_SIG ", *, dtype: " ACCORD_DTYPE_SIG ", " ACCORD_STREAM_SIG
                  ") -> None"),
          "grad_expert_out[slot] = grad[t]; padding is zero. Collective.")
      .def(
          "decline",
          [](GroupHandle& self, MapHandle& handle, std::string_view why, bool prepares) {
            decline(self.use(), handle.handle, prepares, why);
          },
          nb::arg("handle"), nb::arg("why"), nb::kw_only(), nb::arg("prepares") = false,
          R"(Takes part in a call that this rank cannot make.

The ranks that make the call get `why` as an error of this rank, and the group stays usable. On a GPU, the group ends.

prepares: the call is prepare; the handle is not prepared then.)");
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
rank alone.)");
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
  bind_group_calls(group);
}

}  // namespace accord::python
