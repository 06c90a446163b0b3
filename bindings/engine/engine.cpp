// An engine's run() uses a context of its own, which is created by the first run; create_context() returns further
// ones. A context object shares its state with its outputs, so that their memory lives as long as any of them.
#include "bindings/engine/engine.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "accord/engine.hpp"
#include "base/text.hpp"
#include "bindings/arguments/array.hpp"
#include "bindings/arguments/output_array.hpp"
#include "bindings/arguments/path.hpp"
#include "bindings/communicator/communicator.hpp"
#include "bindings/engine/context.hpp"
#include "bindings/engine/descriptions.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"
#include "engine/program/activation_dtype.hpp"
#include "engine/runtime/device_name.hpp"
#include "engine/runtime/memory_budget.hpp"

namespace accord::python {
namespace {

using Communicators = std::map<std::string, Communicator>;

struct EngineHandle {
  std::shared_ptr<const Weights> weights;  // for an assembled engine; destroyed after the engine
  ProcessBound<Engine> engine;
  std::shared_ptr<Binding> binding = std::make_shared<Binding>();
  std::shared_ptr<ContextState> own_context;
  nb::dict communicators;  // that it is bound to, by group
  Memory memory;           // allowed location of inputs

  explicit EngineHandle(Engine made, Device device = {})
      : engine(std::move(made)), memory(device.type == DeviceType::kCpu ? Memory::kCpu : Memory::kOrderedDevice) {}
  Engine& use() { return engine.use("this engine"); }
};

std::shared_ptr<ContextState> make_context(EngineHandle& self) {
  Engine engine = self.use();
  EngineContext context = value_or_raise(run_interruptibly([engine]() mutable { return engine.create_context(); }));
  return std::make_shared<ContextState>(self.weights, std::move(context), engine.inputs(), self.memory, self.binding);
}

nb::list run_engine(EngineHandle& self, const nb::args& given, const nb::kwargs& named) {
  self.use();
  if (!self.own_context) self.own_context = make_context(self);
  return run_context(std::shared_ptr(self.own_context), given, named);
}

/// Reads a dict of communicators, or None for a group of one rank.
Communicators communicators_argument(nb::handle groups) {
  Communicators communicators;
  if (groups.is_none()) return communicators;
  if (!nb::isinstance<nb::dict>(groups)) {
    throw nb::type_error(
        (std::string("groups: expected a dict of communicators by name, got ") + nb::type_name(groups.type()).c_str())
            .c_str());
  }
  for (const auto& [key, value] : nb::cast<nb::dict>(groups)) {
    if (!nb::isinstance<nb::str>(key))
      throw nb::type_error((std::string("groups: the name ") + nb::repr(key).c_str() + " is not a str").c_str());
    const std::string name = nb::cast<std::string>(key);
    if (!nb::isinstance<CommunicatorHandle>(value))
      throw nb::type_error(
          ("groups: \"" + name + "\" is a " + nb::type_name(value.type()).c_str() + ", expected an accord.Communicator")
              .c_str());
    communicators.emplace(name, nb::cast<CommunicatorHandle&>(value).use());
  }
  return communicators;
}

std::shared_ptr<std::vector<Communicator>> values_of(const Communicators& groups) {
  const auto values = std::make_shared<std::vector<Communicator>>();
  for (const auto& entry : groups) values->push_back(entry.second);
  return values;
}

using Places = std::map<std::string, std::pair<int, int>>;

std::map<std::string, GroupPlace> places_argument(const Places& groups) {
  std::map<std::string, GroupPlace> places;
  for (const auto& [name, place] : groups) places[name] = {place.first, place.second};
  return places;
}

using DTypeName = std::optional<std::string>;

std::optional<DType> named_dtype(const DTypeName& name) {
  if (!name) return std::nullopt;
  return value_or_raise(dtype_from_string(*name));
}

std::optional<DType> activation_argument(const DTypeName& name) {
  if (!name) return std::nullopt;
  return value_or_raise(engine::activation_dtype_of_name(*name));
}

using MemoryBudget = engine::MemoryBudget;
using Bytes = std::variant<std::uint64_t, std::string>;  // or text such as "2GiB"
using MemoryLimit = std::variant<std::uint64_t, std::string, std::shared_ptr<MemoryBudget>>;

std::uint64_t bytes_argument(const Bytes& bytes) {
  const auto* text = std::get_if<std::string>(&bytes);
  return text == nullptr ? std::get<std::uint64_t>(bytes) : value_or_raise(parse_bytes(*text));
}

std::shared_ptr<MemoryBudget> budget_argument(const MemoryLimit& limit) {
  if (const auto* shared = std::get_if<std::shared_ptr<MemoryBudget>>(&limit)) return *shared;
  const auto* text = std::get_if<std::string>(&limit);
  return std::make_shared<MemoryBudget>(
      bytes_argument(text == nullptr ? Bytes(std::get<std::uint64_t>(limit)) : *text));
}

// Arrays that a run returns are NumPy's, so outputs are copied to the CPU.
LoadOptions load_options(const std::string& device, int threads, int canonical_ranks, std::int64_t overlap_rows,
                         const DTypeName& all_reduce_dtype, const DTypeName& activation_dtype,
                         const MemoryLimit& memory_limit) {
  return {.device = value_or_raise(engine::device_of_name(device)),
          .outputs = DeviceType::kCpu,
          .threads = threads,
          .canonical_ranks = canonical_ranks,
          .overlap_rows = overlap_rows,
          .all_reduce_dtype = named_dtype(all_reduce_dtype),
          .activation_dtype = activation_argument(activation_dtype),
          .shared_limit = budget_argument(memory_limit)};
}

EngineHandle assemble(const std::string& graph, const std::map<std::string, nb::object>& weights, const Places& groups,
                      const std::map<std::string, std::int64_t>& sizes, const std::string& name, int threads,
                      std::int64_t overlap_rows, const DTypeName& all_reduce_dtype) {
  const auto views = std::make_shared<Weights>();
  EngineParts parts{name, graph, {}, sizes};
  for (const auto& [weight, array] : weights) {
    views->push_back(std::make_unique<ArrayView>(array, weight, Access::kRead));
    parts.weights[weight] = {views->back()->buffer(), views->back()->shape()};
  }
  const LoadOptions options =
      load_options("cpu", threads, 0, overlap_rows, all_reduce_dtype, std::nullopt, std::uint64_t{0});
  const auto assembled = [&] {
    const WithoutGil without_gil;
    return Engine::assemble(parts, places_argument(groups), options);
  };
  EngineHandle handle(value_or_raise(assembled()));
  handle.weights = views;
  return handle;
}

EngineHandle load(nb::handle path, const Places& groups, const std::string& device, int threads, int canonical_ranks,
                  std::int64_t overlap_rows, const DTypeName& all_reduce_dtype, const DTypeName& activation_dtype,
                  const MemoryLimit& memory_limit) {
  const std::map<std::string, GroupPlace> places = places_argument(groups);
  const LoadOptions options =
      load_options(device, threads, canonical_ranks, overlap_rows, all_reduce_dtype, activation_dtype, memory_limit);
  return EngineHandle(value_or_raise(run_interruptibly([file = path_argument(path), places, options] {
                        return Engine::load(file, places, options);
                      })),
                      options.device);
}

EngineHandle load_and_bind(nb::handle path, nb::handle groups, const std::string& device, int threads,
                           int canonical_ranks, std::int64_t overlap_rows, const DTypeName& all_reduce_dtype,
                           const DTypeName& activation_dtype, const MemoryLimit& memory_limit) {
  const Communicators communicators = communicators_argument(groups);
  const LoadOptions options =
      load_options(device, threads, canonical_ranks, overlap_rows, all_reduce_dtype, activation_dtype, memory_limit);
  EngineHandle handle(value_or_raise(run_interruptibly([file = path_argument(path), communicators, options] {
                        return Engine::load_and_bind(file, communicators, options);
                      })),
                      options.device);
  handle.binding->communicators = values_of(communicators);
  if (!groups.is_none()) handle.communicators = nb::cast<nb::dict>(groups);
  return handle;
}

void bind(EngineHandle& self, nb::handle groups) {
  const Communicators communicators = communicators_argument(groups);
  raise_if_error(
      run_interruptibly([engine = self.use(), communicators]() mutable { return engine.bind(communicators); }));
  self.binding->communicators = values_of(communicators);
  self.communicators = groups.is_none() ? nb::dict() : nb::cast<nb::dict>(groups);
}

void unbind(EngineHandle& self) {
  raise_if_error(self.use().unbind());
  self.binding->communicators = values_of({});
  self.communicators = nb::dict();
}

void close_engine(EngineHandle& self) {
  Engine engine = self.use();
  const WithoutGil without_gil;
  engine.close();
}

std::map<std::string, std::pair<int, int>> groups_of(EngineHandle& self) {
  std::map<std::string, std::pair<int, int>> groups;
  for (const auto& [name, place] : self.use().groups()) groups[name] = {place.rank, place.size};
  return groups;
}

}  // namespace

Engine engine_of(nb::handle object) {
  if (!nb::isinstance<EngineHandle>(object)) throw nb::type_error("expected an accord.Engine");
  return nb::cast<EngineHandle&>(object).use();
}

void bind_engine(nb::module_& module) {
  bind_output_array(module);
  bind_engine_descriptions(module);
  bind_engine_contexts(module);
  nb::class_<MemoryBudget>(module, "MemoryBudget",
                           "One limit for several engines together; pass it to each as memory_limit. 0: no limit.")
      .def(
          "__init__", [](MemoryBudget* self, const Bytes& limit) { new (self) MemoryBudget(bytes_argument(limit)); },
          nb::arg("limit"), nb::sig("def __init__(self, limit: int | str) -> None"))
      .def(
          "take",
          [](MemoryBudget& self, const std::string& what, std::uint64_t bytes) {
            raise_if_error(self.reserve({what, bytes}));
          },
          nb::arg("what"), nb::arg("bytes"),
          "Counts memory that belongs to no engine. Raises ResourceExhausted, which lists everything counted, if it "
          "does not fit.");
  nb::class_<EngineHandle>(
      module, "Engine", nb::is_weak_referenceable(),
      R"(A compiled model with its collectives inside. Created by accord.load(), or by Engine.load() and bind().

States: "unbound", "bound", "running", "closed". Any order of destruction is safe: outputs hold their context,
contexts hold the engine, and the engine holds its communicators.)")
      .def_static(
          "load", &load, nb::arg("path"), nb::arg("groups") = nb::dict(), nb::kw_only(), nb::arg("device") = "cpu",
          nb::arg("threads") = 0, nb::arg("canonical_ranks") = 0, nb::arg("overlap_rows") = 0,
          nb::arg("all_reduce_dtype") = nb::none(), nb::arg("activation_dtype") = nb::none(),
          nb::arg("memory_limit") = MemoryLimit(std::uint64_t{0}),
          nb::sig(
              "def load(path: str | os.PathLike[str], groups: collections.abc.Mapping[str, tuple[int, int]] = {}, *, "
              "device: str = 'cpu', threads: int = 0, canonical_ranks: int = 0, overlap_rows: int = 0, "
              "all_reduce_dtype: str | None = None, activation_dtype: str | None = None, memory_limit: int | str | "
              "MemoryBudget = 0) "
              "-> Engine"),
          R"(Loads the package at `path` for one place in each of its groups.

groups: this rank's place (rank, size) in each group; an absent group counts as (0, 1).
threads: compute threads of a context; 0: ACCORD_THREADS.
device, canonical_ranks, overlap_rows, all_reduce_dtype, activation_dtype, memory_limit: see accord.load().

Reads and verifies only this rank's shard. The engine is unbound: it must be bound with bind() before it runs. Raises
NotFound, Corrupt (names the file and the tensor), Unsupported (names the op and its place in the model),
InvalidArgument (more ranks than units to share, or an unknown group), ResourceExhausted.)")
      .def_static("assemble", &assemble, nb::arg("graph"), nb::arg("weights"), nb::arg("groups") = nb::dict(),
                  nb::kw_only(), nb::arg("sizes") = nb::dict(), nb::arg("name") = "engine", nb::arg("threads") = 0,
                  nb::arg("overlap_rows") = 0, nb::arg("all_reduce_dtype") = nb::none(),
                  nb::sig("def assemble(graph: str, weights: collections.abc.Mapping[str, accord._arrays.ArrayLike], "
                          "groups: collections.abc.Mapping[str, tuple[int, int]] = {}, *, "
                          "sizes: collections.abc.Mapping[str, int] = {}, name: str = 'engine', threads: int = 0, "
                          "overlap_rows: int = 0, all_reduce_dtype: str | None = None) -> Engine"),
                  R"(Creates an engine from a graph and weights in memory.

graph: JSON in the format of a package's graph.json.
weights: this rank's weights. They are held, not copied, except for those of matrix products, which are packed.
groups: this rank's place (rank, size) in each group that the graph names.
sizes: sizes of symbols, at which all ops are tried.
threads, overlap_rows, all_reduce_dtype: see accord.load().

The engine is unbound. Raises Unsupported (names the op and its place in the model), Corrupt, InvalidArgument.)")
      .def_static(
          "load_and_bind", &load_and_bind, nb::arg("path"), nb::arg("groups") = nb::none(), nb::kw_only(),
          nb::arg("device") = "cpu", nb::arg("threads") = 0, nb::arg("canonical_ranks") = 0,
          nb::arg("overlap_rows") = 0, nb::arg("all_reduce_dtype") = nb::none(),
          nb::arg("activation_dtype") = nb::none(), nb::arg("memory_limit") = MemoryLimit(std::uint64_t{0}),
          nb::sig(
              "def load_and_bind(path: str | os.PathLike[str], groups: collections.abc.Mapping[str, Communicator] | "
              "None = None, *, device: str = 'cpu', threads: int = 0, canonical_ranks: int = 0, overlap_rows: int = 0, "
              "all_reduce_dtype: str | None = None, activation_dtype: str | None = None, memory_limit: int | str | "
              "MemoryBudget = 0) "
              "-> Engine"),
          "load() and bind() in one. The outcome is agreed: if one rank cannot load, every rank gets its error and "
          "none runs.")
      .def("bind", &bind, nb::arg("groups") = nb::none(),
           nb::sig("def bind(self, groups: collections.abc.Mapping[str, Communicator] | None = None) -> None"),
           R"(Gives each group of more than one rank its communicator. Collective.

The communicators must have the rank and size that were passed to load(). A bound engine may be bound to other
communicators, but not during a run. Raises Mismatch, which names the ranks, if ranks loaded different packages.)")
      .def("run", &run_engine,
           nb::sig("def run(self, *inputs: accord._arrays.ArrayLike, **named: accord._arrays.ArrayLike) -> "
                   "list[OutputArray]"),
           R"(Runs the engine on `inputs`, by position or by name, and returns its outputs.

The outputs last until the next run. Collective over the bound groups: every rank passes equal inputs. Inputs are
arrays as for Communicator: contiguous, with the dtypes listed in `inputs`, and never silently copied or converted.
Inputs of an engine on a GPU may be on that GPU, too: the run begins after the work that their owner (torch, CuPy,
JAX) has put into its current stream. A run with one of the 32 most recently used shapes allocates nothing but the
returned list.)")
      .def(
          "create_context", [](EngineHandle& self) { return ContextHandle{make_context(self)}; },
          "Creates a context with memory of its own, to run from another thread or to keep outputs longer.")
      .def(
          "report",
          [](EngineHandle& self, const std::map<std::string, std::int64_t>& sizes) {
            const std::string json =
                value_or_raise(run_interruptibly([engine = self.use(), sizes] { return engine.report(sizes); }));
            return nb::module_::import_("json").attr("loads")(nb::str(json.data(), json.size()));
          },
          nb::arg("sizes") = nb::dict(),
          nb::sig("def report(self, sizes: collections.abc.Mapping[str, int] = {}) -> dict[str, typing.Any]"),
          R"(Describes the engine on this rank, in the form of one rank of `accord engine report --json`.

It says where each op runs, what was fused into it, its bytes and flops, the collectives and the layout of the arena.

sizes: of the package's symbols ({"batch": 8}); an absent symbol has its smallest size.)")
      .def(
          "load_package_weights",
          [](EngineHandle& self, nb::handle path) {
            raise_if_error(run_interruptibly(
                [engine = self.use(), file = path_argument(path)]() mutable { return engine.load_weights(file); }));
          },
          nb::arg("path"), nb::sig("def load_package_weights(self, path: str | os.PathLike[str]) -> None"),
          "Replaces the weights by those of another package of the same graph; see load_weights().")
      .def(
          "load_weights",
          [](nb::object self, nb::handle weights) {
            nb::module_::import_("accord.engines.weights").attr("load_weights")(self, weights);
          },
          nb::arg("weights"),
          nb::sig(
              "def load_weights(self, weights: str | os.PathLike[str] | collections.abc.Mapping[str, torch.Tensor]) "
              "-> None"),
          R"(Replaces the weights by those of a package, of safetensors files or of a state dict.

weights: the path of another package of the same graph, of a safetensors file, or of a folder of such files; or a
state dict. A checkpoint of transformers fits a package that was exported from its model; merge a LoRA adapter into it
first (PEFT's merge_and_unload()).

Everything is read and checked before anything changes, and several ranks agree on the outcome: on an error all of
them keep the old weights. Runs in progress finish with the old weights and later runs use the new ones, on any
thread. A LanguageModel on one rank recomputes what it caches of its sequences; a LanguageModel on several ranks keeps
the weights that it was created with. Collective over the bound groups, on all ranks between the same runs. Needs
PyTorch unless `weights` is a package. Raises Mismatch, which names a tensor that differs, NotFound, Corrupt,
ResourceExhausted.)")
      .def_prop_ro(
          "path", [](EngineHandle& self) { return self.use().path(); }, "The package that the engine was loaded from.")
      .def_prop_ro(
          "state", [](EngineHandle& self) { return std::string(to_string(self.use().state())); },
          nb::sig("def state(self) -> typing.Literal['unbound', 'bound', 'running', 'closed']"),
          "\"unbound\", \"bound\", \"running\" or \"closed\".")
      .def_prop_ro(
          "load_report", [](EngineHandle& self) { return LoadReport(self.use().load_report()); }, "What loading cost.")
      .def_prop_ro(
          "inputs", [](EngineHandle& self) { return std::vector<TensorInfo>(self.use().inputs()); },
          "The inputs of run().")
      .def_prop_ro(
          "outputs", [](EngineHandle& self) { return std::vector<TensorInfo>(self.use().outputs()); },
          "The outputs of run().")
      .def_prop_ro(
          "communicators", [](EngineHandle& self) { return nb::dict(self.communicators); },
          nb::sig("def communicators(self) -> dict[str, Communicator]"),
          "The communicators that the engine is bound to, by group.")
      .def(
          "module",
          [](nb::object self) { return nb::module_::import_("accord.jit.engine_module").attr("EngineModule")(self); },
          nb::sig("def module(self) -> torch.nn.Module"),
          R"(Returns the engine as a torch.nn.Module.

Called like the exported model, it returns what the model returns, in memory of its own. It may also be called with
the engine's inputs, by position or by name.

Its groups are those that the engine is bound to, or those of accord.distributed_context() and accord.set_groups().
Needs PyTorch.)")
      .def_prop_ro("groups", &groups_of, "The package's groups and this rank's place (rank, size) in each.")
      .def("unbind", &unbind,
           "Releases the communicators: the engine must be bound again before a run. Raises WrongState during a run.")
      .def("close", &close_engine, "Closes the engine: contexts raise WrongState from now on. Idempotent.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](EngineHandle& self, nb::handle, nb::handle, nb::handle) { close_engine(self); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none());
}

}  // namespace accord::python
