// Each call takes the GIL and is forwarded. The properties that torchcomms reads of a window are fields of its class.

#include "window.hpp"

#include <utility>

namespace accord::torchcomms {

using namespace torch::comms;

/// Runs `body` with the GIL, and at_failure() if it raises.
template <typename Body>
auto Window::guarded(const Body& body) {
  const py::gil_scoped_acquire gil;
  try {
    return body();
  } catch (py::error_already_set&) {
    at_failure_();
    throw;
  }
}

/// Calls a method that returns a torch.distributed.Work.
template <typename Options, typename... Arguments>
c10::intrusive_ptr<TorchWork> Window::call(const char* name, const Options& options, const Arguments&... arguments) {
  return guarded([&]() -> c10::intrusive_ptr<TorchWork> {
    py::object work = calls_->attr(name)(arguments..., py::arg("timeout") = timeout_of(options));
    if (work.attr("is_completed")().template cast<bool>()) return c10::make_intrusive<TorchWorkCompleted>();
    const milliseconds timeout = options.timeout == kNoTimeout ? milliseconds::max() : options.timeout;
    return c10::make_intrusive<AsyncWork>(std::move(work), timeout, at_failure_);
  });
}

Window::Window(py::object calls, std::function<void()> at_failure)
    : calls_(std::move(calls)), at_failure_(std::move(at_failure)) {
  buf_device_ = at::kCPU;
}

void Window::tensor_register(const at::Tensor& tensor, bool owning) {
  guarded([&] { calls_->attr("tensor_register")(tensor, owning); });
  describe(tensor, owning);
}

void Window::describe(const at::Tensor& tensor, bool owning) {
  win_size_ = tensor.nbytes();
  buf_tensor_ = owning ? std::optional(tensor) : std::nullopt;
  buf_dtype_ = tensor.scalar_type();
  buf_shape_ = tensor.sizes().vec();
}

void Window::tensor_deregister() {
  win_size_ = 0;
  buf_tensor_.reset();
  guarded([&] { calls_->attr("tensor_deregister")(); });
}

std::shared_ptr<TorchCommWindow> Window::clone() {
  return guarded([&] {
    const py::object copy = calls_->attr("clone")();
    auto other = std::make_shared<Window>(copy, at_failure_);
    const py::object tensor = copy.attr("tensor");
    if (!tensor.is_none()) other->describe(tensor.cast<at::Tensor>(), true);
    return other;
  });
}

c10::intrusive_ptr<TorchWork> Window::put(const at::Tensor& tensor, int to, size_t offset, bool async_op,
                                          const PutOptions& options) {
  return call("put", options, tensor, to, offset, async_op);
}

c10::intrusive_ptr<TorchWork> Window::signal(int to, bool async_op, const SignalOptions& options) {
  return call("signal", options, to, async_op);
}

c10::intrusive_ptr<TorchWork> Window::wait_signal(int from, bool async_op, const WaitSignalOptions& options) {
  return call("wait_signal", options, from, async_op);
}

at::Tensor Window::map_remote_tensor(int rank) {
  return guarded([&] { return calls_->attr("map_remote_tensor")(rank).cast<at::Tensor>(); });
}

std::shared_ptr<TorchCommWindowAttr> Window::get_attr(int rank) {
  const bool is_mapped = guarded([&] { return calls_->attr("is_mapped")(rank).cast<bool>(); });
  auto attributes = std::make_shared<TorchCommWindowAttr>();
  attributes->accessType =
      is_mapped ? TorchCommWinAccessType::WIN_ACCESS_TYPE_UNIFIED : TorchCommWinAccessType::WIN_ACCESS_TYPE_SEPARATE;
  return attributes;
}

}  // namespace accord::torchcomms
