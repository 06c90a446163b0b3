// An engine's run() uses a context of its own, made at the first run; create_context() gives further ones. A context object
// shares its state with its outputs, so that their memory lives as long as any of them.
#include "engine.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "array.hpp"
#include "communicator.hpp"
#include "gil.hpp"
#include "interrupt.hpp"
#include "output_array.hpp"
#include "path.hpp"
#include "process.hpp"
#include "status.hpp"

namespace accord::python {
namespace {

using Communicators = std::map<std::string, Communicator>;

/// What Ctrl-C aborts: an engine and its contexts, also those made before bind(), share one. bind() replaces the list as a
/// whole, so that a call under way keeps the one that it began with. Used under the GIL only.
struct Binding {
  std::shared_ptr<std::vector<Communicator>> communicators = std::make_shared<std::vector<Communicator>>();
};

struct ContextState {
  ProcessBound<EngineContext> context;
  std::vector<TensorInfo> inputs;
  std::shared_ptr<const Binding> binding;
  std::shared_ptr<RunCount> count = std::make_shared<RunCount>();
  std::atomic<bool> running = false;

  ContextState(EngineContext made, std::vector<TensorInfo> infos, std::shared_ptr<const Binding> bound)
      : context(std::move(made)), inputs(std::move(infos)), binding(std::move(bound)) {}
};

struct ContextHandle {
  std::shared_ptr<ContextState> state;
};

struct EngineHandle {
  ProcessBound<Engine> engine;
  std::shared_ptr<Binding> binding = std::make_shared<Binding>();
  std::shared_ptr<ContextState> own_context;

  explicit EngineHandle(Engine made) : engine(std::move(made)) {}
  Engine& use() { return engine.use("this engine"); }
};

/// Marks a context as running for as long as it lives.
class Running {
 public:
  explicit Running(ContextState& state) : state_(state) {
    if (state_.running.exchange(true))
      raise(Status(StatusCode::kWrongState,
                   "this context is running in another thread; give each thread its own by create_context()"));
  }
  ~Running() { state_.running = false; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  ContextState& state_;
};

std::string names_of(const std::vector<TensorInfo>& tensors) {
  std::string names;
  for (const TensorInfo& tensor : tensors) names += (names.empty() ? "" : ", ") + tensor.name;
  return names;
}

/// The arguments in the order of the engine's inputs; TypeError if one is missing, given twice or unknown.
std::vector<nb::object> in_order(const std::vector<TensorInfo>& inputs, const nb::args& given,
                                 const nb::kwargs& named) {
  const auto fail = [&](const std::string& what) {
    throw nb::type_error((what + "; the engine's inputs are: " + names_of(inputs)).c_str());
  };
  if (given.size() > inputs.size())
    fail(std::to_string(given.size()) + " inputs were given, expected " + std::to_string(inputs.size()));
  std::vector<nb::object> ordered(inputs.size());
  for (std::size_t i = 0; i < given.size(); ++i) ordered[i] = nb::borrow(given[i]);
  for (const auto& [key, value] : named) {
    const std::string name = nb::cast<std::string>(key);
    const auto found =
        std::find_if(inputs.begin(), inputs.end(), [&](const TensorInfo& input) { return input.name == name; });
    if (found == inputs.end()) fail("unknown input \"" + name + "\"");
    nb::object& place = ordered[static_cast<std::size_t>(found - inputs.begin())];
    if (place.is_valid()) fail("input \"" + name + "\" was given twice");
    place = nb::borrow(value);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!ordered[i].is_valid()) fail("input \"" + inputs[i].name + "\" is missing");
  return ordered;
}

nb::list run(const std::shared_ptr<ContextState>& state, const nb::args& given, const nb::kwargs& named) {
  const std::vector<nb::object> objects = in_order(state->inputs, given, named);
  std::vector<std::unique_ptr<ArrayView>> views;
  std::vector<TensorView> inputs;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    views.push_back(std::make_unique<ArrayView>(objects[i], state->inputs[i].name, Access::kRead));
    inputs.push_back({views.back()->buffer(), views.back()->shape()});
  }
  EngineContext& context = state->context.use("this engine's context");
  Result<std::vector<TensorView>> outputs(std::vector<TensorView>{});
  {
    const Running running(*state);
    ++state->count->runs;
    const std::shared_ptr<std::vector<Communicator>> communicators = state->binding->communicators;
    const InterruptScope interrupts(*communicators);
    const WithoutGil without_gil;
    outputs = context.run(inputs);
  }
  nb::list arrays;
  for (TensorView& output : value_or_raise(std::move(outputs)))
    arrays.append(OutputArray(state, state->count, std::move(output)));
  return arrays;
}

std::shared_ptr<ContextState> make_context(EngineHandle& self) {
  Engine engine = self.use();
  EngineContext context = value_or_raise(run_interruptibly([engine]() mutable { return engine.create_context(); }));
  return std::make_shared<ContextState>(std::move(context), engine.inputs(), self.binding);
}

nb::list run_engine(EngineHandle& self, const nb::args& given, const nb::kwargs& named) {
  self.use();
  if (!self.own_context) self.own_context = make_context(self);
  return run(std::shared_ptr(self.own_context), given, named);
}

/// A dict of communicators, or of None for a group of one rank.
Communicators communicators_argument(nb::handle groups) {
  Communicators communicators;
  if (groups.is_none()) return communicators;
  for (const auto& [key, value] : nb::cast<nb::dict>(groups)) {
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

EngineHandle load(nb::handle path, const std::map<std::string, std::pair<int, int>>& groups, int threads) {
  std::map<std::string, GroupPlace> places;
  for (const auto& [name, place] : groups) places[name] = {place.first, place.second};
  return EngineHandle(value_or_raise(run_interruptibly(
      [file = path_argument(path), places, threads] { return Engine::load(file, places, {.threads = threads}); })));
}

EngineHandle load_and_bind(nb::handle path, nb::handle groups, int threads) {
  const Communicators communicators = communicators_argument(groups);
  EngineHandle handle(value_or_raise(run_interruptibly([file = path_argument(path), communicators, threads] {
    return Engine::load_and_bind(file, communicators, {.threads = threads});
  })));
  handle.binding->communicators = values_of(communicators);
  return handle;
}

void bind(EngineHandle& self, nb::handle groups) {
  const Communicators communicators = communicators_argument(groups);
  raise_if_error(
      run_interruptibly([engine = self.use(), communicators]() mutable { return engine.bind(communicators); }));
  self.binding->communicators = values_of(communicators);
}

void close(EngineHandle& self) {
  Engine engine = self.use();
  const WithoutGil without_gil;
  engine.close();
}

std::map<std::string, std::pair<int, int>> groups_of(EngineHandle& self) {
  std::map<std::string, std::pair<int, int>> groups;
  for (const auto& [name, place] : self.use().groups()) groups[name] = {place.rank, place.size};
  return groups;
}

/// Numbers as int, symbols as str.
nb::tuple shape_of(const TensorInfo& info) {
  nb::list shape;
  for (const std::string& extent : info.shape) {
    const bool number =
        !extent.empty() && std::all_of(extent.begin(), extent.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number) {
      shape.append(std::stoll(extent));
    } else {
      shape.append(extent);
    }
  }
  return nb::tuple(shape);
}

std::string repr_info(const TensorInfo& info) {
  return "TensorInfo(name='" + info.name + "', dtype='" + std::string(to_string(info.dtype)) +
         "', shape=" + nb::cast<std::string>(nb::str(shape_of(info))) + ")";
}

std::string repr_report(const LoadReport& report) {
  return "LoadReport(manifest_bytes=" + std::to_string(report.manifest_bytes) +
         ", weight_bytes_read=" + std::to_string(report.weight_bytes_read) +
         ", shard_bytes=" + std::to_string(report.shard_bytes) +
         ", replicated_bytes=" + std::to_string(report.replicated_bytes) +
         ", seconds=" + std::to_string(report.seconds) + ")";
}

void bind_descriptions(nb::module_& module) {
  nb::class_<TensorInfo>(module, "TensorInfo", "What an engine takes or gives.")
      .def_ro("name", &TensorInfo::name)
      .def_prop_ro("dtype", [](const TensorInfo& self) { return std::string(to_string(self.dtype)); })
      .def_prop_ro("shape", &shape_of, nb::sig("def shape(self) -> tuple[int | str, ...]"),
                   "Each extent a number, or the name of a symbol.")
      .def("__repr__", &repr_info);
  nb::class_<LoadReport>(module, "LoadReport", "What loading cost; bytes are counted by the reader, not estimated.")
      .def_ro("manifest_bytes", &LoadReport::manifest_bytes,
              "Bytes read of manifest, graph and the headers of weight files.")
      .def_ro("weight_bytes_read", &LoadReport::weight_bytes_read, "Bytes read of weight files.")
      .def_ro("shard_bytes", &LoadReport::shard_bytes, "Bytes of this rank's part of the sharded tensors.")
      .def_ro("replicated_bytes", &LoadReport::replicated_bytes, "Bytes of the tensors that every rank holds.")
      .def_ro("seconds", &LoadReport::seconds, "How long it took.")
      .def("__repr__", &repr_report);
  nb::class_<ContextHandle>(module, "EngineContext",
                            "One run's memory; for one thread at a time. Made by Engine.create_context().")
      .def(
          "run", [](ContextHandle& self, nb::args given, nb::kwargs named) { return run(self.state, given, named); },
          nb::sig("def run(self, *inputs: accord._arrays.ArrayLike, **named: accord._arrays.ArrayLike) -> "
                  "list[OutputArray]"),
          "As Engine.run(), in this context's memory.");
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_output_array(module);
  bind_descriptions(module);
  nb::class_<EngineHandle>(
      module, "Engine", nb::is_weak_referenceable(),
      R"(A compiled model with its collectives inside. Made by accord.load(), or by Engine.load() and bind().

States: "unbound", "bound", "running", "closed". Any order of destruction is safe: outputs hold their
context, contexts the engine, the engine its communicators.)")
      .def_static(
          "load", &load, nb::arg("path"), nb::arg("groups") = nb::dict(), nb::kw_only(), nb::arg("threads") = 0,
          nb::sig(
              "def load(path: str | os.PathLike[str], groups: collections.abc.Mapping[str, tuple[int, int]] = {}, *, "
              "threads: int = 0) -> Engine"),
          R"(Reads the package at `path` for one place (rank, size) in each of its groups; an absent one counts as (0, 1).

Reads and checks only this rank's shard. The engine is unbound: it runs after bind(). threads: that a context
computes with; 0 is ACCORD_THREADS. Raises NotFound, Corrupt (naming file and tensor), Unsupported (naming
the op and its place in the model), InvalidArgument (more ranks than units to share, an unknown group).)")
      .def_static(
          "load_and_bind", &load_and_bind, nb::arg("path"), nb::arg("groups") = nb::none(), nb::kw_only(),
          nb::arg("threads") = 0,
          nb::sig(
              "def load_and_bind(path: str | os.PathLike[str], groups: collections.abc.Mapping[str, Communicator] | "
              "None = None, *, threads: int = 0) -> Engine"),
          "load() and bind() in one, agreed: if one rank cannot load, every rank gets its error and none runs.")
      .def(
          "bind", &bind, nb::arg("groups") = nb::none(),
          nb::sig("def bind(self, groups: collections.abc.Mapping[str, Communicator] | None = None) -> None"),
          R"(Gives each group of more than one rank its communicator, of the rank and size that load() was told. Collective.

Raises Mismatch if ranks loaded different packages, naming them.)")
      .def("run", &run_engine,
           nb::sig("def run(self, *inputs: accord._arrays.ArrayLike, **named: accord._arrays.ArrayLike) -> "
                   "list[OutputArray]"),
           R"(Runs on `inputs`, by position or by name, and gives the outputs, which stay until the next run.

Collective over the bound groups: every rank gives equal inputs. Inputs are arrays as for Communicator: contiguous,
of the dtypes in `inputs`, never copied or converted in silence. A shape that was met before allocates nothing.)")
      .def(
          "create_context", [](EngineHandle& self) { return ContextHandle{make_context(self)}; },
          "A context with memory of its own, to run from another thread or to keep outputs longer.")
      .def_prop_ro(
          "state", [](EngineHandle& self) { return std::string(to_string(self.use().state())); },
          nb::sig("def state(self) -> typing.Literal['unbound', 'bound', 'running', 'closed']"),
          "\"unbound\", \"bound\", \"running\" or \"closed\".")
      .def_prop_ro(
          "load_report", [](EngineHandle& self) { return LoadReport(self.use().load_report()); }, "What loading cost.")
      .def_prop_ro(
          "inputs", [](EngineHandle& self) { return std::vector<TensorInfo>(self.use().inputs()); },
          "What run() takes.")
      .def_prop_ro(
          "outputs", [](EngineHandle& self) { return std::vector<TensorInfo>(self.use().outputs()); },
          "What run() gives.")
      .def_prop_ro("groups", &groups_of, "The package's groups and this rank's place (rank, size) in each.")
      .def("close", &close, "Ends the engine: contexts raise WrongState from now on. Idempotent.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](EngineHandle& self, nb::handle, nb::handle, nb::handle) { close(self); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none());
}

}  // namespace accord::python
