#pragma once
// The calling thread's device for a few calls of CUDA.

#include <cuda_runtime_api.h>

#include <optional>

#include "accord/buffer.hpp"
#include "device/cuda/driver.hpp"

namespace accord::device::cuda {

/// The calling thread's calls of CUDA concern `device` from now on, until pop_context(); also where they did before.
Status push_context(Device device);
void pop_context();

/// Calls of CUDA by this thread concern `device` while this lives, and are as before afterwards: a thread that used no device has none
/// again. Captures of other streams do not forbid them.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  /// For calls that name no device: the thread's own, else one that is in use, so that none is begun by them.
  DeviceScope();
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  /// Not ok: nothing was changed.
  const Status& status() const { return status_; }

 private:
  Status enter(std::optional<Device> device);

  const Driver* driver_ = nullptr;
  bool pushed_ = false;
  bool relaxed_ = false;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;  // the thread's own while this lives
  Status status_;
};

}  // namespace accord::device::cuda
