#pragma once
// accord.EngineContext, and the state that it shares with its engine.

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "accord/engine.hpp"
#include "bindings/arguments/array.hpp"
#include "bindings/arguments/output_array.hpp"
#include "bindings/interpreter/process.hpp"

namespace accord::python {

namespace nb = nanobind;

/// The communicators that Ctrl-C aborts. An engine and its contexts, including those created before bind(), share one
/// Binding. bind() replaces the whole list, so that a call in progress keeps the list that it began with. Used only
/// under the GIL.
struct Binding {
  std::shared_ptr<std::vector<Communicator>> communicators = std::make_shared<std::vector<Communicator>>();
};

using Weights = std::vector<std::unique_ptr<ArrayView>>;

struct ContextState {
  std::shared_ptr<const Weights> weights;  // destroyed after the context
  ProcessBound<EngineContext> context;
  std::vector<TensorInfo> inputs;
  Memory memory;  // allowed location of inputs
  std::shared_ptr<const Binding> binding;
  std::shared_ptr<RunCount> count = std::make_shared<RunCount>();
  std::atomic<bool> running = false;

  ContextState(std::shared_ptr<const Weights> kept, EngineContext made, std::vector<TensorInfo> infos, Memory allowed,
               std::shared_ptr<const Binding> bound)
      : weights(std::move(kept)),
        context(std::move(made)),
        inputs(std::move(infos)),
        memory(allowed),
        binding(std::move(bound)) {}
};

struct ContextHandle {
  std::shared_ptr<ContextState> state;
};

/// One sequence of a batch from Python: its rows, its tokens before them, its blocks.
using SequenceArgument = std::tuple<std::int64_t, std::int64_t, std::vector<std::int32_t>>;

/// Runs the context, and returns the outputs as a list of arrays.
nb::list run_context(const std::shared_ptr<ContextState>& state, const nb::args& given, const nb::kwargs& named,
                     const std::optional<std::vector<SequenceArgument>>& batch = std::nullopt);

void bind_engine_contexts(nb::module_& module);

}  // namespace accord::python
