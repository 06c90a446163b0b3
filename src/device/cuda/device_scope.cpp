// cudaSetDevice would work, except for restoring the previous state: a thread that used no device counts as being on
// device 0, and setting device 0 initializes it, which uses hundreds of MiB of its memory per process. Instead, the
// device's primary context, which is also the one of the CUDA runtime, is pushed and popped. Each context is retained
// from its first use on.
// A capture in global mode, torch's default, forbids other threads every call that might wait, such as allocating or
// querying an event. The attempt invalidates the capture. In relaxed mode a thread may make such calls at its own
// risk, which is safe here because streams that are being captured are never queried.
#include "device/cuda/device_scope.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "device/cuda/error.hpp"

namespace accord::device::cuda {
namespace {

constexpr int kMaxContexts = 128;
std::array<std::atomic<CUcontext>, kMaxContexts> contexts = {};
thread_local std::vector<cudaStreamCaptureMode> modes_before_push;

Result<CUcontext> context_of(const Driver& driver, Device device) {
  const bool is_in_range = device.type == DeviceType::kCuda && device.index >= 0 && device.index < kMaxContexts;
  if (is_in_range) {
    if (CUcontext const cached = contexts[static_cast<std::size_t>(device.index)].load(std::memory_order_acquire))
      return cached;
  }
  int count = 0;
  ACCORD_RETURN_IF_ERROR(driver.status_of("cuDeviceGetCount", driver.device_get_count(&count)));
  if (!is_in_range || device.index >= count) {
    return Status(StatusCode::kInternal,
                  fmt::format("{} does not exist: there are {} CUDA devices", to_string(device), count));
  }
  CUdevice handle = 0;
  CUcontext context = nullptr;
  ACCORD_RETURN_IF_ERROR(driver.status_of("cuDeviceGet", driver.device_get(&handle, device.index)));
  ACCORD_RETURN_IF_ERROR(driver.status_of("cuDevicePrimaryCtxRetain", driver.primary_context_retain(&context, handle)));
  contexts[static_cast<std::size_t>(device.index)].store(context, std::memory_order_release);
  return context;
}

/// Returns the context of some device in use, or null.
CUcontext any_context() {
  for (const std::atomic<CUcontext>& each : contexts) {
    if (CUcontext const context = each.load(std::memory_order_acquire)) return context;
  }
  return nullptr;
}

}  // namespace

Status push_context(Device device) {
  ACCORD_ASSIGN_OR_RETURN(const Driver* const used, driver());
  ACCORD_ASSIGN_OR_RETURN(CUcontext const context, context_of(*used, device));
  ACCORD_RETURN_IF_ERROR(used->status_of("cuCtxPushCurrent", used->context_push_current(context)));
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  Status relaxed = status_of("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&mode));
  if (relaxed.ok()) {
    modes_before_push.push_back(mode);
  } else {
    CUcontext popped = nullptr;
    (void)used->context_pop_current(&popped);
  }
  return relaxed;
}

void pop_context() {
  (void)cudaThreadExchangeStreamCaptureMode(&modes_before_push.back());
  modes_before_push.pop_back();
  CUcontext popped = nullptr;
  if (const Result<const Driver*> used = driver(); used.ok()) (void)(*used)->context_pop_current(&popped);
}

DeviceScope::DeviceScope(Device device) : status_(enter(device)) {}
DeviceScope::DeviceScope() : status_(enter(std::nullopt)) {}

Status DeviceScope::enter(std::optional<Device> device) {
  ACCORD_ASSIGN_OR_RETURN(driver_, driver());
  CUcontext current = nullptr, wanted = nullptr;
  ACCORD_RETURN_IF_ERROR(driver_->status_of("cuCtxGetCurrent", driver_->context_get_current(&current)));
  if (device.has_value()) {
    ACCORD_ASSIGN_OR_RETURN(wanted, context_of(*driver_, *device));
  } else if (current == nullptr) {
    wanted = any_context();
  }
  if (wanted != nullptr && wanted != current) {
    ACCORD_RETURN_IF_ERROR(driver_->status_of("cuCtxPushCurrent", driver_->context_push_current(wanted)));
    pushed_ = true;
  }
  ACCORD_RETURN_IF_ERROR(
      status_of("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&capture_mode_)));
  relaxed_ = true;
  return {};
}

DeviceScope::~DeviceScope() {
  if (relaxed_) (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  CUcontext popped = nullptr;
  if (pushed_) (void)driver_->context_pop_current(&popped);
}

}  // namespace accord::device::cuda
