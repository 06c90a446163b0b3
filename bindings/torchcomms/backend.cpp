// accord.torchcomms._native: torchcomms' C++ interface, for the features that torchcomms does not pass to a backend
// in Python: the timeout of a call, the factor of PREMUL_SUM, batches of messages, abort, the state of a work. Each
// call takes the GIL and is forwarded to accord.torchcomms.backend.Backend, which does all the rest, so that both
// ways have the same meaning.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <comms/torchcomms/TorchCommBackend.hpp>
#include <comms/torchcomms/TorchCommFactory.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace accord::torchcomms {
namespace {

namespace py = pybind11;
using namespace torch::comms;
using std::chrono::milliseconds;

/// A Python object that may be released without the GIL, and after the interpreter has ended.
class Held {
 public:
  explicit Held(py::object object) : object_(std::move(object)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (Py_IsInitialized() == 0) {
      (void)object_.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }
  const py::object& operator*() const { return object_; }
  const py::object* operator->() const { return &object_; }

 private:
  py::object object_;
};

/// A call in progress. Its status changes on the thread that waits, because hooks are registered without a lock.
class AsyncWork final : public TorchWork {
 public:
  AsyncWork(py::object work, milliseconds timeout) : work_(std::move(work)), timeout_(timeout) {
    setStatus(WorkStatus::INPROGRESS);
  }

  void wait() override {
    runWaitPreHooks();
    try {
      const py::gil_scoped_acquire gil;
      work_->attr("wait")();
    } catch (py::error_already_set& error) {
      const py::gil_scoped_acquire gil;
      setStatus(error.matches(PyExc_TimeoutError) ? WorkStatus::TIMEDOUT : WorkStatus::ERROR);
      throw;
    }
    if (!isCompleted()) setStatus(WorkStatus::COMPLETED);
    runWaitPostHooks();
  }
  void waitBlocking() override { wait(); }
  milliseconds getTimeout() const override { return timeout_; }

 private:
  const Held work_;
  const milliseconds timeout_;
};

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

template <typename Value>
py::object to_python(const Value& value) {
  return py::cast(value);
}

class Backend final : public TorchCommBackend {
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

  int getRank() const override { return rank_; }
  int getSize() const override { return size_; }
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
    runAbortHooks();
  }

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
  /// Caches the values that torchcomms queries often, and without the GIL.
  void cache_properties(at::Device device, const std::string& name, const CommOptions& options) {
    device_ = device;
    name_ = name;
    options_ = options;
    options_.store = nullptr;
    rank_ = calls_->attr("get_rank")().cast<int>();
    size_ = calls_->attr("get_size")().cast<int>();
    version_ = py::module_::import("accord").attr("__version__").cast<std::string>();
  }

  /// The hints of a call are ignored: none of them has a meaning for accord, and torchcomms passes them for whichever
  /// backend knows them.
  template <typename Options, typename... Arguments>
  c10::intrusive_ptr<TorchWork> call(const char* name, const Options& options, const Arguments&... arguments) {
    const py::gil_scoped_acquire gil;
    py::object work;
    try {
      const py::object timeout = options.timeout == kNoTimeout ? py::none() : py::cast(options.timeout);
      work = calls_->attr(name)(to_python(arguments)..., py::arg("timeout") = timeout);
    } catch (py::error_already_set&) {
      if (calls_->attr("is_failed")().cast<bool>()) runAbortHooks();
      throw;
    }
    if (work.is_none()) return c10::make_intrusive<TorchWorkCompleted>();
    return c10::make_intrusive<AsyncWork>(std::move(work),
                                          options.timeout == kNoTimeout ? options_.timeout : options.timeout);
  }

  const Held calls_;
  at::Device device_{at::kCPU};
  CommOptions options_;
  std::string name_, version_;
  int rank_ = -1, size_ = -1;
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
