// One function for each call reads its arguments; define() creates two methods from it, one that runs the call and
// one that starts it and passes the arrays to its Work. Both release the GIL; Ctrl-C ends the first.
#include "bindings/communicator/calls.hpp"

#include <memory>
#include <optional>
#include <string>

#include "bindings/arguments/stream.hpp"
#include "bindings/communicator/batch.hpp"
#include "bindings/communicator/call_arguments.hpp"
#include "bindings/communicator/work.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

void read_broadcast(CallArguments& arguments, const Communicator& self, nb::handle array, Rank root) {
  const Access access = self.rank() == root ? Access::kRead : Access::kWrite;
  arguments.call = Call::broadcast(arguments.input(array, "array", access), root);
}

void read_all_gather(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle output) {
  const Buffer from = arguments.input(input, "input");
  arguments.call = Call::all_gather(from, arguments.output(output, "output"));
}

void read_reduce_scatter(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle output,
                         std::string_view op, nb::handle factor) {
  const Buffer from = arguments.input(input, "input");
  arguments.call = Call::reduce_scatter(from, arguments.output(output, "output"), arguments.reduction(op, factor));
}

void read_all_reduce(CallArguments& arguments, const Communicator&, nb::handle array, std::string_view op,
                     nb::handle out, nb::handle factor) {
  const bool in_place = out.is_none();
  const Buffer from = arguments.input(array, "array", in_place ? Access::kWrite : Access::kRead);
  arguments.call =
      Call::all_reduce(from, in_place ? from : arguments.output(out, "out"), arguments.reduction(op, factor));
}

void read_reduce(CallArguments& arguments, const Communicator& self, nb::handle array, Rank root, std::string_view op,
                 nb::handle out, nb::handle factor) {
  const bool in_place = out.is_none() && self.rank() == root;
  const Buffer from = arguments.input(array, "array", in_place ? Access::kWrite : Access::kRead);
  arguments.call =
      Call::reduce(from, in_place ? from : arguments.output(out, "out"), arguments.reduction(op, factor), root);
}

void read_gather(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle output, Rank root) {
  const Buffer from = arguments.input(input, "input");
  arguments.call = Call::gather(from, arguments.output(output, "output"), root);
}

void read_scatter(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle output, Rank root) {
  const Buffer from = arguments.input(input, "input");
  arguments.call = Call::scatter(from, arguments.output(output, "output"), root);
}

void read_all_to_all(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle output) {
  const Buffer from = arguments.input(input, "input");
  arguments.call = Call::all_to_all(from, arguments.output(output, "output"));
}

void read_all_gather_v(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle output,
                       nb::handle counts) {
  const Buffer from = arguments.input(input, "input"), to = arguments.output(output, "output");
  arguments.call = Call::all_gather_v(from, to, arguments.output_counts(counts, "counts"));
}

void read_reduce_scatter_v(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle output,
                           nb::handle counts, std::string_view op, nb::handle factor) {
  const Buffer from = arguments.input(input, "input"), to = arguments.output(output, "output");
  arguments.call =
      Call::reduce_scatter_v(from, to, arguments.input_counts(counts, "counts"), arguments.reduction(op, factor));
}

void read_gather_v(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle output,
                   nb::handle counts, Rank root) {
  const Buffer from = arguments.input(input, "input"), to = arguments.output(output, "output");
  arguments.call = Call::gather_v(from, to, arguments.output_counts(counts, "counts"), root);
}

void read_scatter_v(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle counts,
                    nb::handle output, Rank root) {
  const Buffer from = arguments.input(input, "input"), to = arguments.output(output, "output");
  arguments.call = Call::scatter_v(from, to, arguments.input_counts(counts, "counts"), root);
}

void read_all_to_all_v(CallArguments& arguments, const Communicator&, nb::handle input, nb::handle input_counts,
                       nb::handle output, nb::handle output_counts) {
  const Buffer from = arguments.input(input, "input"), to = arguments.output(output, "output");
  arguments.call = Call::all_to_all_v(from, arguments.input_counts(input_counts, "input_counts"), to,
                                      arguments.output_counts(output_counts, "output_counts"));
}

void read_send(CallArguments& arguments, const Communicator&, nb::handle array, Rank to, std::int32_t tag) {
  arguments.call = Call::send(arguments.input(array, "array"), to, tag);
}

void read_recv(CallArguments& arguments, const Communicator&, nb::handle array, Rank source, std::int32_t tag) {
  arguments.call = Call::recv(arguments.output(array, "array"), source, tag);
}

void run(Communicator& communicator, const CallArguments& arguments) {
  raise_if_error(run_collective(communicator, [&] { return communicator.run(arguments.call, arguments.options); }));
}

WorkHandle start(Communicator& communicator, std::unique_ptr<CallArguments> arguments) {
  std::optional<Work> work;
  {
    const WithoutGil without_gil;
    work.emplace(communicator.start(arguments->call, arguments->options));
  }
  HeldArguments held;
  held.push_back(std::move(arguments));
  return WorkHandle(std::move(*work), std::move(held));
}

/// The classes that have a method for each call.
struct Callers {
  nb::class_<CommunicatorHandle>& communicator;
  nb::class_<Batch>& batch;
};

/// Returns the annotation of a method, "def barrier(self, *, timeout: float | None = None) -> Work".
std::string signature(const std::string& name, std::string_view parameters, std::string_view result) {
  return "def " + name + "(self, " + std::string(parameters) + ") -> " + std::string(result);
}

std::string async_documentation(const std::string& name) { return name + ", but returns its Work at once."; }

/// Adds the methods `name` and `name`_async, and `name` of a batch. `read` gets the arguments that `parameters`
/// lists; `extra` tells nanobind how to pass them. The methods also take the keywords timeout, stream (a batch has
/// one of each for all its calls) and dtype.
template <typename... Parameters, typename... Extra>
void define(const Callers& callers, const std::string& name,
            void (*read)(CallArguments&, const Communicator&, Parameters...), const char* parameters,
            const char* documentation, const Extra&... extra) {
  const auto timeout = nb::arg("timeout") = nb::none();
  const auto dtype = nb::arg("dtype") = nb::none();
  const auto stream = nb::arg("stream") = nb::none();
  const std::string with_dtype = ", dtype: accord._arrays.DTypeName | None = None";
  const std::string all_parameters =
      std::string(parameters) + ", " ACCORD_TIMEOUT_SIG + with_dtype + ", " ACCORD_STREAM_SIG;
  const std::string async_name = name + "_async";
  callers.communicator.def(
      name.c_str(),
      [read](CommunicatorHandle& self, Parameters... values, nb::handle timeout_value, nb::handle dtype_value,
             nb::handle stream_value) {
        CallArguments arguments({timeout_value, dtype_value, stream_value});
        read(arguments, self.use(), values...);
        run(self.use(), arguments);
      },
      extra..., timeout, dtype, stream, nb::sig(signature(name, all_parameters, "None").c_str()), documentation);
  callers.communicator.def(
      async_name.c_str(),
      [read](CommunicatorHandle& self, Parameters... values, nb::handle timeout_value, nb::handle dtype_value,
             nb::handle stream_value) {
        auto arguments =
            std::make_unique<CallArguments>(CallArguments::ByName{timeout_value, dtype_value, stream_value});
        read(*arguments, self.use(), values...);
        return start(self.use(), std::move(arguments));
      },
      extra..., timeout, dtype, stream, nb::sig(signature(async_name, all_parameters, "Work").c_str()),
      async_documentation(name).c_str());
  callers.batch.def(
      name.c_str(),
      [read](Batch& self, Parameters... values, nb::handle dtype_value) {
        auto arguments = std::make_unique<CallArguments>(CallArguments::ByName{.dtype = dtype_value});
        read(*arguments, self.communicator(), values...);
        self.add(std::move(arguments));
      },
      extra..., dtype, nb::sig(signature(name, parameters + with_dtype, "None").c_str()),
      ("Adds a call of Communicator." + name + " to the batch.").c_str());
}

// A barrier has no arrays and therefore no dtype.
void define_barrier(const Callers& callers) {
  const auto timeout = nb::arg("timeout") = nb::none();
  callers.batch.def(
      "barrier", [](Batch& self) { self.add(std::make_unique<CallArguments>(CallArguments::ByName{})); },
      "Adds a call of Communicator.barrier to the batch.");
  callers.communicator
      .def(
          "barrier",
          [](CommunicatorHandle& self, nb::handle value) { run(self.use(), CallArguments({.timeout = value})); },
          nb::kw_only(), timeout, nb::sig(signature("barrier", "*, " ACCORD_TIMEOUT_SIG, "None").c_str()),
          "Returns once all ranks have called it.")
      .def(
          "barrier_async",
          [](CommunicatorHandle& self, nb::handle value) {
            return start(self.use(), std::make_unique<CallArguments>(CallArguments::ByName{.timeout = value}));
          },
          nb::kw_only(), timeout, nb::sig(signature("barrier_async", "*, " ACCORD_TIMEOUT_SIG, "Work").c_str()),
          async_documentation("barrier").c_str());
}

#define ACCORD_ARRAY_SIG "accord._arrays.ArrayLike"

// recv_any returns the rank, so it is not a Call and has no asynchronous form.
void define_recv_any(const Callers& callers) {
  callers.communicator.def(
      "recv_any",
      [](CommunicatorHandle& self, nb::handle array, std::int32_t tag, nb::handle timeout, nb::handle dtype) {
        CallArguments arguments({timeout, dtype});
        const Buffer buffer = arguments.output(array, "array");
        Communicator& communicator = self.use();
        return value_or_raise(
            run_collective(communicator, [&] { return communicator.recv_any(buffer, tag, arguments.options); }));
      },
      nb::arg("array"), nb::arg("tag") = 0, nb::kw_only(), nb::arg("timeout") = nb::none(),
      nb::arg("dtype") = nb::none(),
      nb::sig("def recv_any(self, array: " ACCORD_ARRAY_SIG ", tag: int = 0, *, " ACCORD_TIMEOUT_SIG
              ", dtype: accord._arrays.DTypeName | None = None) -> int"),
      "Receives into `array` the next message with that tag from any rank, and returns that rank. Ranks are polled "
      "round-robin, starting after the one served last. Earlier receives from one particular rank get its messages "
      "first.");
}

}  // namespace

#define ACCORD_OP_SIG "op: accord._arrays.ReduceOp = 'sum'"
#define ACCORD_FACTOR_SIG "*, factor: complex | " ACCORD_ARRAY_SIG " | None = None"
#define ACCORD_OUT_SIG "out: " ACCORD_ARRAY_SIG " | None = None"
#define ACCORD_COUNTS_SIG "collections.abc.Sequence[int]"
#define ACCORD_BOTH_SIG "input: " ACCORD_ARRAY_SIG ", output: " ACCORD_ARRAY_SIG

void bind_calls(nb::module_& module, nb::class_<CommunicatorHandle>& communicator) {
  nb::class_<Batch> batch = bind_batch(module, communicator);
  const Callers callers{communicator, batch};
  const auto array = nb::arg("array"), input = nb::arg("input"), output = nb::arg("output"), root = nb::arg("root");
  const auto op = nb::arg("op") = "sum";
  const auto out = nb::arg("out") = nb::none(), factor = nb::arg("factor") = nb::none();
  const auto only = nb::kw_only();
  define_barrier(callers);
  define(callers, "broadcast", &read_broadcast, "array: " ACCORD_ARRAY_SIG ", root: int, *",
         "Copies `array` of rank `root` to all ranks; count and dtype must be equal on all ranks.", array, root, only);
  define(callers, "all_gather", &read_all_gather, ACCORD_BOTH_SIG ", *",
         "Gathers the `input` of all ranks into `output` in rank order; `output` has size times as many elements.",
         input, output, only);
  define(callers, "reduce_scatter", &read_reduce_scatter, ACCORD_BOTH_SIG ", " ACCORD_OP_SIG ", " ACCORD_FACTOR_SIG,
         R"(Combines `input` over all ranks with `op` and gives part r of the result to rank r.

`input` has size times as many elements as `output`. Same order and rounding as all_reduce.)",
         input, output, op, only, factor);
  define(callers, "all_reduce", &read_all_reduce,
         "array: " ACCORD_ARRAY_SIG ", " ACCORD_OP_SIG ", " ACCORD_OUT_SIG ", " ACCORD_FACTOR_SIG,
         R"(Combines `array` over all ranks, in place or into `out`.

Results are bit-identical on all ranks and in every run.

op: "sum", "product", "min", "max", "band", "bor", "bxor", "avg" or "premul_sum", which multiplies `array` by this
rank's own `factor` (a number, or an array of one element) before the sum.

Floats of 8 and 16 bits accumulate in float32 and are rounded once. Count, dtype and op must be equal on all ranks, or
Mismatch is raised. docs/communicator.md says which op is defined for which dtype.)",
         array, op, out, only, factor);
  define(callers, "reduce", &read_reduce,
         "array: " ACCORD_ARRAY_SIG ", root: int, " ACCORD_OP_SIG ", " ACCORD_OUT_SIG ", " ACCORD_FACTOR_SIG,
         "Like all_reduce, but only rank `root` gets the result, in place or in `out`; `out` is not used on the other "
         "ranks.",
         array, root, op, out, only, factor);
  define(callers, "gather", &read_gather,
         "input: " ACCORD_ARRAY_SIG ", output: " ACCORD_ARRAY_SIG " | None, root: int, *",
         "Gathers the `input` of all ranks into `output` of rank `root` in rank order; `output` has size times as "
         "many elements, and is None on the other ranks.",
         input, nb::arg("output").none(), root, only);
  define(callers, "scatter", &read_scatter,
         "input: " ACCORD_ARRAY_SIG " | None, output: " ACCORD_ARRAY_SIG ", root: int, *",
         "Gives part r of rank `root`'s `input` to rank r; `input` has size times as many elements, and is None on "
         "the other ranks.",
         nb::arg("input").none(), output, root, only);
  define(callers, "all_to_all", &read_all_to_all, ACCORD_BOTH_SIG ", *",
         "Moves part p of rank r's `input` to part r of rank p's `output`; both have the same count, a multiple of "
         "the size.",
         input, output, only);
  const auto counts = nb::arg("counts");
  define(callers, "all_gather_v", &read_all_gather_v, ACCORD_BOTH_SIG ", counts: " ACCORD_COUNTS_SIG ", *",
         "all_gather with parts of unequal counts: `counts[r]` elements are rank r's; equal on all ranks.", input,
         output, counts, only);
  define(callers, "reduce_scatter_v", &read_reduce_scatter_v,
         ACCORD_BOTH_SIG ", counts: " ACCORD_COUNTS_SIG ", " ACCORD_OP_SIG ", " ACCORD_FACTOR_SIG,
         "reduce_scatter with parts of unequal counts: `counts[r]` elements are rank r's; equal on all ranks.", input,
         output, counts, op, only, factor);
  define(callers, "gather_v", &read_gather_v,
         "input: " ACCORD_ARRAY_SIG ", output: " ACCORD_ARRAY_SIG " | None, counts: " ACCORD_COUNTS_SIG
         " | None, root: int, *",
         "gather with parts of unequal counts: `counts[r]` elements come from rank r; `output` and `counts` are None "
         "on the other ranks.",
         input, nb::arg("output").none(), nb::arg("counts").none(), root, only);
  define(
      callers, "scatter_v", &read_scatter_v,
      "input: " ACCORD_ARRAY_SIG " | None, counts: " ACCORD_COUNTS_SIG " | None, output: " ACCORD_ARRAY_SIG
      ", root: int, *",
      "scatter with parts of unequal counts: `counts[r]` elements go to rank r; `input` and `counts` are None on the "
      "other ranks.",
      nb::arg("input").none(), nb::arg("counts").none(), output, root, only);
  define(callers, "all_to_all_v", &read_all_to_all_v,
         "input: " ACCORD_ARRAY_SIG ", input_counts: " ACCORD_COUNTS_SIG ", output: " ACCORD_ARRAY_SIG
         ", output_counts: " ACCORD_COUNTS_SIG ", *",
         "Sends `input_counts[p]` elements to rank p and receives `output_counts[p]` elements from it. Raises "
         "Mismatch if rank p's counts differ.",
         input, nb::arg("input_counts"), output, nb::arg("output_counts"), only);
  const auto tag = nb::arg("tag") = 0;
  define(callers, "send", &read_send, "array: " ACCORD_ARRAY_SIG ", to: int, tag: int = 0, *",
         "Sends `array` to rank `to`, which must call recv with the same count, dtype and tag. Returns when the array "
         "may be reused. Tags are not negative.",
         array, nb::arg("to"), tag, only);
  define(callers, "recv", &read_recv, "array: " ACCORD_ARRAY_SIG ", source: int, tag: int = 0, *",
         "Receives into `array` the next message with that tag from rank `source`. Messages of one pair of ranks and "
         "one tag arrive in order.",
         array, nb::arg("source"), tag, only);
  define_recv_any(callers);
}

}  // namespace accord::python
