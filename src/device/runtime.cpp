#include "device/runtime.hpp"

#include <atomic>

#ifdef ACCORD_HAS_CUDA
#include "device/cuda/runtime.hpp"
#endif

namespace accord::device {
namespace {

std::atomic<Runtime*> replacement = nullptr;

}  // namespace

Result<Runtime*> runtime_of(DeviceType type) {
  if (type == DeviceType::kCpu) return Status(StatusCode::kInvalidArgument, "the cpu is no device with streams");
  Runtime* runtime = replacement.load(std::memory_order_acquire);
#ifdef ACCORD_HAS_CUDA
  if (runtime == nullptr) runtime = &cuda::runtime();
#endif
  if (runtime == nullptr) return Status(StatusCode::kUnsupported, "this build computes on cpu only");
  ACCORD_RETURN_IF_ERROR(runtime->viable());
  return runtime;
}

void replace_runtime(DeviceType type, Runtime* runtime) {
  if (type == DeviceType::kCuda) replacement.store(runtime, std::memory_order_release);
}

}  // namespace accord::device
