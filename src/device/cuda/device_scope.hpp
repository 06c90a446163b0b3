#pragma once
// Sets the calling thread's device for a few CUDA calls.

#include <cuda_runtime_api.h>

#include <optional>

#include "accord/buffer.hpp"
#include "device/cuda/driver.hpp"

namespace accord::device::cuda {

/// Directs the calling thread's CUDA calls to `device` until pop_context(), even if they already went there. Captures
/// of other streams do not prevent the calls.
Status push_context(Device device);
void pop_context();

/// Directs this thread's CUDA calls to `device` for the lifetime of this object and restores the previous state
/// afterwards: a thread that used no device has none again. Captures of other streams do not prevent the calls.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  /// For calls that name no device: uses the thread's own device, or else one that is in use, so that these calls do
  /// not initialize one.
  DeviceScope();
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  /// If this is not ok, nothing was changed.
  const Status& status() const { return status_; }

 private:
  Status enter(std::optional<Device> device);

  const Driver* driver_ = nullptr;
  bool pushed_ = false;
  bool relaxed_ = false;
  // the thread's own mode during this object's lifetime
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;
  Status status_;
};

}  // namespace accord::device::cuda
