// accord.torchcomms._native: torchcomms' C++ interface, for the features that torchcomms does not pass to a backend
// in Python: the timeout of a call, the factor of PREMUL_SUM, batches of messages, abort, the state of a work, other
// members, windows, persistent and registered tensors. Each call takes the GIL and is forwarded to
// accord.torchcomms.backend.Backend, which does all the rest, so that both ways have the same meaning.
#include <atomic>
#include <comms/torchcomms/TorchCommBackend.hpp>
#include <comms/torchcomms/TorchCommFactory.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "window.hpp"
#include "work.hpp"

namespace accord::torchcomms {
namespace {

using namespace torch::comms;

py::object to_python(const ReduceOp& op) {
  if (op.type() != ReduceOp::RedOpType::PREMUL_SUM) return py::cast(op);
  return py::make_tuple("premul_sum", std::visit([](const auto& factor) { return py::cast(factor); }, *op.factor()));
}

py::object to_python(const std::vector<BatchSendRecv::P2POp>& ops) {
  py::list list;
  for (const BatchSendRecv::P2POp& op : ops)
    list.append(py::make_tuple(op.type == BatchSendRecv::P2POp::OpType::SEND, op.tensor, op.peer));
  return list;
}

py::object to_python(const py::object& value) { return value; }

template <typename Value>
py::object to_python(const Value& value) {
  return py::cast(value);
}

class Backend final : public TorchCommBackend, public std::enable_shared_from_this<Backend> {
 public:
  explicit Backend(py::object calls) : calls_(std::move(calls)) {}

  py::object communicator() const { return calls_->attr("communicator"); }

  void init(at::Device device, const std::string& name, const CommOptions& options) override {
    const py::gil_scoped_acquire gil;
    calls_->attr("init")(device, name, options);
    cache_properties(device, name, options);
  }
  void finalize() override {
    const py::gil_scoped_acquire gil;
    calls_->attr("finalize")();
  }
  std::shared_ptr<TorchCommBackend> split(const std::vector<int>& ranks, const std::string& name,
                                          const CommOptions& options) override {
    const py::gil_scoped_acquire gil;
    py::object part = calls_->attr("split")(ranks, name, options);
    if (part.is_none()) return nullptr;
    auto backend = std::make_shared<Backend>(std::move(part));
    backend->cache_properties(device_, name, options);
    return backend;
  }

  int getRank() const override { return formed(rank_); }
  int getSize() const override { return formed(size_); }
  std::string_view getBackendName() const override { return "accord"; }
  std::string_view getBackendVersion() const override { return version_; }
  std::string_view getCommName() const override { return name_; }
  const CommOptions& getOptions() const override { return options_; }
  const at::Device& getDevice() const override { return device_; }

  void setTimeout(milliseconds timeout) override {
    const py::gil_scoped_acquire gil;
    calls_->attr("set_timeout")(timeout);
    options_.timeout = timeout;
  }
  void setHints(std::unordered_map<std::string, std::string> hints) override {
    const py::gil_scoped_acquire gil;
    calls_->attr("set_hints")(hints);
    for (auto& [name, value] : hints) options_.hints[name] = std::move(value);
  }
  bool isAbortSupported() const override { return true; }
  bool isAborted() const override {
    const py::gil_scoped_acquire gil;
    return calls_->attr("is_failed")().cast<bool>();
  }
  void abort() override {
    {
      const py::gil_scoped_acquire gil;
      communicator().attr("abort")("abort() of torchcomms");
    }
    run_abort_hooks_once();
  }

  bool supportsReconfigure() const override { return true; }
  bool isInitialized() const override {
    const py::gil_scoped_acquire gil;
    return calls_->attr("is_ready")().cast<bool>();
  }
  InitHandle getInitHandle() const override {
    const py::gil_scoped_acquire gil;
    return calls_->attr("get_init_handle")().cast<std::string>();
  }
  c10::intrusive_ptr<TorchWork> reconfigure(const ReconfigureOptions& options) override {
    const py::gil_scoped_acquire gil;
    calls_->attr("reconfigure")(options.uuid, options.handles, options.hints, options.timeout);
    for (const auto& [name, value] : options.hints) options_.hints[name] = value;
    cache_rank();
    abort_hooks_have_run_ = false;
    return c10::make_intrusive<TorchWorkCompleted>();
  }

  bool supportsWindow() const override { return true; }
  std::shared_ptr<TorchCommWindow> new_window(const std::optional<at::Tensor>& tensor) override {
    const py::gil_scoped_acquire gil;
    auto window = std::make_shared<Window>(calls_->attr("new_window")(), at_failure());
    if (tensor) window->tensor_register(*tensor, true);
    return window;
  }
  void tensor_register(const at::Tensor& tensor) override {
    const py::gil_scoped_acquire gil;
    calls_->attr("tensor_register")(tensor);
  }
  void tensor_deregister(const at::Tensor& tensor) override {
    const py::gil_scoped_acquire gil;
    calls_->attr("tensor_deregister")(tensor);
  }

  AllGatherPHandle all_gather_p_init(at::Tensor& output, const AllGatherPInitOptions& options) override {
    const py::gil_scoped_acquire gil;
    py::object made = calls_->attr("all_gather_p_init")(output, timeout_of(options));
    ++last_handle_;
    persistent_.try_emplace(last_handle_, std::move(made));
    return reinterpret_cast<AllGatherPHandle>(last_handle_);
  }
  c10::intrusive_ptr<TorchWork> all_gather_p_exec(AllGatherPHandle handle, const at::Tensor& input, bool async_op,
                                                  const AllGatherPExecOptions& options) override {
    return call("all_gather_p_exec", options, *persistent(handle)->second, input, async_op);
  }
  void all_gather_p_free(AllGatherPHandle handle) override { persistent_.erase(persistent(handle)); }

  c10::intrusive_ptr<TorchWork> send(const at::Tensor& tensor, int to, bool async_op,
                                     const SendOptions& options) override {
    return call("send", options, tensor, to, async_op, options.tag);
  }
  c10::intrusive_ptr<TorchWork> recv(at::Tensor& tensor, int from, bool async_op, const RecvOptions& options) override {
    return call("recv", options, tensor, from, async_op, options.tag);
  }
  c10::intrusive_ptr<TorchWork> batch_op_issue(const std::vector<BatchSendRecv::P2POp>& ops, bool async_op,
                                               const BatchP2POptions& options) override {
    return call("batch_op_issue", options, ops, async_op);
  }
  c10::intrusive_ptr<TorchWork> broadcast(at::Tensor& tensor, int root, bool async_op,
                                          const BroadcastOptions& options) override {
    return call("broadcast", options, tensor, root, async_op);
  }
  c10::intrusive_ptr<TorchWork> all_reduce(at::Tensor& tensor, const ReduceOp& op, bool async_op,
                                           const AllReduceOptions& options) override {
    return call("all_reduce", options, tensor, op, async_op);
  }
  c10::intrusive_ptr<TorchWork> reduce(const at::Tensor& tensor, int root, const ReduceOp& op, bool async_op,
                                       const ReduceOptions& options) override {
    return call("reduce", options, tensor, root, op, async_op);
  }
  c10::intrusive_ptr<TorchWork> all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                                           bool async_op, const AllGatherOptions& options) override {
    return call("all_gather", options, outputs, input, async_op);
  }
  c10::intrusive_ptr<TorchWork> all_gather_v(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                                             bool async_op, const AllGatherOptions& options) override {
    return call("all_gather_v", options, outputs, input, async_op);
  }
  c10::intrusive_ptr<TorchWork> all_gather_single(at::Tensor& output, const at::Tensor& input, bool async_op,
                                                  const AllGatherSingleOptions& options) override {
    return call("all_gather_single", options, output, input, async_op);
  }
  c10::intrusive_ptr<TorchWork> reduce_scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs,
                                               const ReduceOp& op, bool async_op,
                                               const ReduceScatterOptions& options) override {
    return call("reduce_scatter", options, output, inputs, op, async_op);
  }
  c10::intrusive_ptr<TorchWork> reduce_scatter_v(at::Tensor& output, const std::vector<at::Tensor>& inputs,
                                                 const ReduceOp& op, bool async_op,
                                                 const ReduceScatterOptions& options) override {
    return call("reduce_scatter_v", options, output, inputs, op, async_op);
  }
  c10::intrusive_ptr<TorchWork> reduce_scatter_single(at::Tensor& output, const at::Tensor& input, const ReduceOp& op,
                                                      bool async_op,
                                                      const ReduceScatterSingleOptions& options) override {
    return call("reduce_scatter_single", options, output, input, op, async_op);
  }
  c10::intrusive_ptr<TorchWork> all_to_all_single(at::Tensor& output, const at::Tensor& input, bool async_op,
                                                  const AllToAllSingleOptions& options) override {
    return call("all_to_all_single", options, output, input, async_op);
  }
  c10::intrusive_ptr<TorchWork> all_to_all_v_single(at::Tensor& output, const at::Tensor& input,
                                                    const std::vector<uint64_t>& output_splits,
                                                    const std::vector<uint64_t>& input_splits, bool async_op,
                                                    const AllToAllvSingleOptions& options) override {
    return call("all_to_all_v_single", options, output, input, output_splits, input_splits, async_op);
  }
  c10::intrusive_ptr<TorchWork> all_to_all(const std::vector<at::Tensor>& outputs,
                                           const std::vector<at::Tensor>& inputs, bool async_op,
                                           const AllToAllOptions& options) override {
    return call("all_to_all", options, outputs, inputs, async_op);
  }
  c10::intrusive_ptr<TorchWork> barrier(bool async_op, const BarrierOptions& options) override {
    return call("barrier", options, async_op);
  }
  c10::intrusive_ptr<TorchWork> scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, int root,
                                        bool async_op, const ScatterOptions& options) override {
    return call("scatter", options, output, inputs, root, async_op);
  }
  c10::intrusive_ptr<TorchWork> gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input, int root,
                                       bool async_op, const GatherOptions& options) override {
    return call("gather", options, outputs, input, root, async_op);
  }

 private:
  using Persistent = std::map<std::uintptr_t, Held>;

  /// Returns the rank or size, if there is one.
  int formed(int value) const {
    if (value >= 0 && size_ > 0) return value;
    throw std::runtime_error("communicator \"" + name_ + "\" is not formed yet; call reconfigure() first");
  }

  Persistent::iterator persistent(AllGatherPHandle handle) {
    const auto found = persistent_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == persistent_.end())
      throw std::runtime_error("communicator \"" + name_ + "\" has no persistent all_gather with this handle: it was " +
                               "freed, or made by another communicator");
    return found;
  }

  /// Hooks run once for each failure, on the thread that learns of it first.
  void run_abort_hooks_once() {
    if (!abort_hooks_have_run_.exchange(true)) runAbortHooks();
  }
  /// REQUIRES: the GIL is held. It is released for the hooks: torchcomms' flight recorder waits in its hook, seconds
  /// long, for a request of another thread. As with NCCL, they do not run if the program wants neither an abort nor to
  /// reconfigure.
  void run_abort_hooks_if_failed() {
    if (!options_.abort_process_on_timeout_or_error && !options_.enable_reconfigure) return;
    if (!calls_->attr("is_failed")().cast<bool>()) return;
    const py::gil_scoped_release released;
    run_abort_hooks_once();
  }

  std::function<void()> at_failure() {
    return [backend = weak_from_this()] {
      if (const auto held = backend.lock()) held->run_abort_hooks_if_failed();
    };
  }

  void cache_rank() {
    rank_ = calls_->attr("get_rank")().cast<int>();
    size_ = calls_->attr("get_size")().cast<int>();
  }

  /// Caches the values that torchcomms queries often, and without the GIL.
  void cache_properties(at::Device device, const std::string& name, const CommOptions& options) {
    device_ = device;
    name_ = name;
    options_ = options;
    options_.store = nullptr;
    cache_rank();
    version_ = py::module_::import("accord").attr("__version__").cast<std::string>();
  }

  /// The hints of a call are ignored: none of them has a meaning for accord, and torchcomms passes them for whichever
  /// backend knows them.
  template <typename Options, typename... Arguments>
  c10::intrusive_ptr<TorchWork> call(const char* name, const Options& options, const Arguments&... arguments) {
    const py::gil_scoped_acquire gil;
    py::object work;
    try {
      work = calls_->attr(name)(to_python(arguments)..., py::arg("timeout") = timeout_of(options));
    } catch (py::error_already_set&) {
      run_abort_hooks_if_failed();
      throw;
    }
    if (work.is_none()) return c10::make_intrusive<TorchWorkCompleted>();
    return c10::make_intrusive<AsyncWork>(
        std::move(work), options.timeout == kNoTimeout ? options_.timeout : options.timeout, at_failure());
  }

  const Held calls_;
  at::Device device_{at::kCPU};
  CommOptions options_;
  std::string name_, version_;
  int rank_ = -1, size_ = -1;
  Persistent persistent_;  // by handle
  std::uintptr_t last_handle_ = 0;
  std::atomic<bool> abort_hooks_have_run_ = false;
};

/// Registers the backend with torchcomms; `calls` is the Python class. It is never released: torchcomms keeps it
/// beyond the end of the interpreter.
void register_backend(py::object calls) {
  auto* const leaked = new py::object(std::move(calls));
  TorchCommFactory::get().register_backend("accord", [leaked]() -> std::shared_ptr<TorchCommBackend> {
    const py::gil_scoped_acquire gil;
    return std::make_shared<Backend>((*leaked)());
  });
}

}  // namespace
}  // namespace accord::torchcomms

PYBIND11_MODULE(_native, module) {
  using namespace accord::torchcomms;
  module.attr("built_for") = py::make_tuple(ACCORD_TORCH_VERSION, ACCORD_TORCHCOMMS_VERSION);
  py::module_::import("torchcomms");
  py::class_<Backend, torch::comms::TorchCommBackend, std::shared_ptr<Backend>>(module, "Backend")
      .def_property_readonly("communicator", &Backend::communicator);
  module.def("register_backend", &register_backend);
}
