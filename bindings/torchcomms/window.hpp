#pragma once
// torchcomms' windows, forwarded to accord.torchcomms.windows.Window.

#include <comms/torchcomms/TorchCommWindow.hpp>
#include <functional>
#include <memory>

#include "work.hpp"

namespace accord::torchcomms {

class Window final : public torch::comms::TorchCommWindow {
 public:
  /// `calls` is the Python object. `at_failure` is called with the GIL when a call fails.
  Window(py::object calls, std::function<void()> at_failure);

  void tensor_register(const at::Tensor& tensor, bool owning) override;
  void tensor_deregister() override;
  std::shared_ptr<torch::comms::TorchCommWindow> clone() override;
  c10::intrusive_ptr<torch::comms::TorchWork> put(const at::Tensor& tensor, int to, size_t offset, bool async_op,
                                                  const torch::comms::PutOptions& options) override;
  c10::intrusive_ptr<torch::comms::TorchWork> signal(int to, bool async_op,
                                                     const torch::comms::SignalOptions& options) override;
  c10::intrusive_ptr<torch::comms::TorchWork> wait_signal(int from, bool async_op,
                                                          const torch::comms::WaitSignalOptions& options) override;
  at::Tensor map_remote_tensor(int rank) override;
  std::shared_ptr<torch::comms::TorchCommWindowAttr> get_attr(int rank) override;

 private:
  template <typename Body>
  auto guarded(const Body& body);
  template <typename Options, typename... Arguments>
  c10::intrusive_ptr<torch::comms::TorchWork> call(const char* name, const Options& options,
                                                   const Arguments&... arguments);
  /// Stores the properties of the window's tensor that torchcomms reports.
  void describe(const at::Tensor& tensor, bool owning);

  const Held calls_;
  const std::function<void()> at_failure_;
};

}  // namespace accord::torchcomms
