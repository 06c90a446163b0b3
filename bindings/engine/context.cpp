// A context object shares its state with its outputs, so that their memory lives as long as any of them.
#include "bindings/engine/context.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "bindings/engine/inputs.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

/// Marks a context as running for as long as this object lives.
class Running {
 public:
  explicit Running(ContextState& state) : state_(state) {
    if (state_.running.exchange(true))
      raise(Status(StatusCode::kWrongState,
                   "this context is running in another thread; create one for each thread with create_context()"));
  }
  ~Running() { state_.running = false; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  ContextState& state_;
};

/// Runs `run` on the context with `inputs`, and returns its result. Raises WrongState if another thread runs it.
template <typename Run>
auto run_alone(ContextState& state, const GivenInputs& inputs, Run run) {
  EngineContext& context = state.context.use("this engine's context");
  const Running running(state);
  ++state.count->runs;
  const std::shared_ptr<std::vector<Communicator>> communicators = state.binding->communicators;
  return run_collective(*communicators, [&] {
    context.set_stream(inputs.stream);
    return run(context);
  });
}

/// Returns (position, name, module, dtype, shape, bytes) for each value; the bytes of a fused value are None.
nb::list run_observed(const std::shared_ptr<ContextState>& state, const nb::args& given, const nb::kwargs& named) {
  const GivenInputs inputs(state->inputs, state->memory, given, named);
  std::vector<std::pair<InnerValue, std::vector<std::byte>>> observed;
  const auto observe = [&](const InnerValue& value) {
    const auto* begin = static_cast<const std::byte*>(value.value.buffer.data);
    observed.emplace_back(value, std::vector<std::byte>(begin, begin + value.value.buffer.bytes()));
  };
  raise_if_error(
      run_alone(*state, inputs, [&](EngineContext& context) { return context.run_observed(inputs.views, observe); }));
  nb::list values;
  for (const auto& [value, bytes] : observed) {
    nb::object data = nb::none();
    if (value.value.buffer.data != nullptr) data = nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    values.append(nb::make_tuple(value.position, value.name, value.module,
                                 std::string(to_string(value.value.buffer.dtype)), value.value.shape, data));
  }
  return values;
}

}  // namespace

nb::list run_context(const std::shared_ptr<ContextState>& state, const nb::args& given, const nb::kwargs& named,
                     const std::optional<std::vector<SequenceArgument>>& batch) {
  std::vector<SequenceRows> sequences;
  if (batch) {
    for (const auto& [rows, context, blocks] : *batch) sequences.push_back({rows, context, blocks});
  }
  const GivenInputs inputs(state->inputs, state->memory, given, named);
  Result<std::vector<TensorView>> outputs = run_alone(*state, inputs, [&](EngineContext& context) {
    return batch ? context.run(inputs.views, sequences) : context.run(inputs.views);
  });
  nb::list arrays;
  for (TensorView& output : value_or_raise(std::move(outputs)))
    arrays.append(OutputArray(state, state->count, std::move(output)));
  return arrays;
}

void bind_engine_contexts(nb::module_& module) {
  nb::class_<ContextHandle>(module, "EngineContext",
                            "One run's memory. Used by one thread at a time. Created by Engine.create_context().")
      .def(
          "run",
          [](ContextHandle& self, nb::args given, nb::kwargs named) { return run_context(self.state, given, named); },
          nb::sig("def run(self, *inputs: accord._arrays.ArrayLike, **named: accord._arrays.ArrayLike) -> "
                  "list[OutputArray]"),
          "Same as Engine.run(), in this context's memory.")
      .def(
          "create_cache",
          [](ContextHandle& self, std::int64_t blocks, std::int64_t block_tokens, const std::string& dtype) {
            KeyValueCacheOptions options{blocks, block_tokens, value_or_raise(dtype_from_string(dtype))};
            raise_if_error(self.state->context.use("this engine's context").create_cache(options));
          },
          nb::arg("blocks"), nb::kw_only(), nb::arg("block_tokens") = 16, nb::arg("dtype") = "float32",
          R"(Creates the key-value cache that run_sequences() needs, and discards an earlier one.

The cache has `blocks` blocks of `block_tokens` tokens (a multiple of 16); each block belongs to one sequence at a
time. dtype: "float32", "bfloat16" or "int8". On the CPU, the cache uses memory only as it fills.)")
      .def(
          "copy_block",
          [](ContextHandle& self, std::int32_t from, std::int32_t to) {
            raise_if_error(self.state->context.use("this engine's context").copy_block(from, to));
          },
          nb::arg("from_block"), nb::arg("to_block"), "Copies a block of the cache, in all layers.")
      .def(
          "start_trace",
          [](ContextHandle& self) {
            self.state->context.use("this engine's context").set_profiling(Profiling::kTrace);
          },
          "Records when each step runs, from now on. Costs about 50 ns for each step; the first million steps are "
          "kept.")
      .def(
          "trace",
          [](ContextHandle& self) {
            EngineContext context = self.state->context.use("this engine's context");
            return value_or_raise(run_interruptibly([context]() mutable { return context.trace(); }));
          },
          R"(Returns the recordings of all ranks so far, side by side, as text for a file that ui.perfetto.dev opens.

Arrows lead from the rank that arrived last at a collective to the ranks that waited for it. Collective over the bound
groups; every rank gets the same text.)")
      .def(
          "run_observed",
          [](ContextHandle& self, nb::args given, nb::kwargs named) { return run_observed(self.state, given, named); },
          nb::sig("def run_observed(self, *inputs: accord._arrays.ArrayLike, **named: accord._arrays.ArrayLike) -> "
                  "list[tuple[int, str, str, str, list[int], bytes | None]]"),
          R"(Runs once, slowly, and returns every value of the model.

Each value is a tuple (position in the graph's order, name, module, dtype, shape, bytes), whole even if the ranks hold
parts of it; its bytes are None if it was fused away. Collective over the bound groups. accord.compare() uses it.)")
      .def_prop_ro(
          "cache_bytes",
          [](ContextHandle& self) { return self.state->context.use("this engine's context").cache_bytes(); },
          "Bytes of the cache; on the CPU, bytes that were never written use no memory.")
      .def(
          "run_sequences",
          [](ContextHandle& self, const std::vector<SequenceArgument>& sequences, nb::args given, nb::kwargs named) {
            return run_context(self.state, given, named, sequences);
          },
          nb::sig("def run_sequences(self, sequences: collections.abc.Sequence[tuple[int, int, "
                  "collections.abc.Sequence[int]]], *inputs: accord._arrays.ArrayLike, "
                  "**named: accord._arrays.ArrayLike) -> list[OutputArray]"),
          R"(Runs a language model on the rows of several sequences, which are one after the other in the inputs.

sequences: for each sequence, its number of rows, its number of tokens before these rows (whose keys and values are in
the cache), and its blocks: token t is in block blocks[t // block_tokens].

On the CPU, the bits of a row's result do not depend on what else is in the batch. Raises InvalidArgument if the
sequences do not fill the rows or name invalid blocks.)");
}

}  // namespace accord::python
