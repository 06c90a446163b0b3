// The calls of an ExpertGroup. A call holds its arrays in place, reads them as buffers and runs without the GIL, as the
// communicator's calls do. The C++ side checks the arrays.
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "bindings/arguments/stream.hpp"
#include "bindings/expert/expert.hpp"
#include "bindings/interpreter/status.hpp"

#define ACCORD_MAYBE_SIG ACCORD_ROWS_SIG " | None = None"
#define ACCORD_DTYPE_SIG "accord._arrays.DTypeName | None = None"

namespace accord::python {
namespace {

/// Elements of a row of each kind of array.
struct Widths {
  Widths(const ExpertGroup& group, const MapHandle& handle)
      : hidden(group.config().hidden), scales((hidden + 127) / 128), top_k(handle.handle.top_k()) {}
  int hidden, scales, top_k;
};

/// Notifies the ranks that arrive at the call that this one cannot make it.
void decline(ExpertGroup& group, const ExpertHandle& handle, bool prepares, std::string_view why) {
  (void)status_of_call(group, [&](ExpertGroup& it) {
    return it.decline(handle, prepares, {StatusCode::kInvalidArgument, std::string(why)});
  });
}

/// Returns `make()` for a call of a group. If it throws, declines the call with the reason first. On GPUs no other rank
/// is waiting at this point.
template <typename Make>
auto arguments_of(GroupHandle& self, const MapHandle& handle, bool prepares, Make make) {
  ExpertGroup& group = self.use();
  if (group.config().device.type != DeviceType::kCpu) return make();
  return make_or_report(make, [&](std::string_view why) { decline(group, handle.handle, prepares, why); });
}

}  // namespace

void bind_expert_calls(nb::class_<GroupHandle>& group) {
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

}  // namespace accord::python
