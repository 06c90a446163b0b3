#include "device/runtime.hpp"

#include <fmt/format.h>

#include <atomic>

#ifdef ACCORD_HAS_CUDA
#include "device/cuda/runtime.hpp"
#endif

namespace accord::device {
namespace {

std::atomic<Runtime*> runtime_replacement = nullptr;

}  // namespace

Result<Runtime*> runtime_of(DeviceType type) {
  if (type == DeviceType::kCpu) return Status(StatusCode::kInvalidArgument, "the cpu is no device with streams");
  Runtime* runtime = runtime_replacement.load(std::memory_order_acquire);
#ifdef ACCORD_HAS_CUDA
  if (runtime == nullptr) runtime = &cuda::runtime();
#endif
  if (runtime == nullptr) return Status(StatusCode::kUnsupported, "this build computes on cpu only");
  ACCORD_RETURN_IF_ERROR(runtime->viable());
  return runtime;
}

void replace_runtime(DeviceType type, Runtime* runtime) {
  if (type == DeviceType::kCuda) runtime_replacement.store(runtime, std::memory_order_release);
}

Status launch(Runtime& runtime, const Kernel& kernel, const void* arguments, const Grid& grid, Device device,
              Stream stream) {
  const auto wrong = [&](std::string_view what) {
    return Status(StatusCode::kInternal, fmt::format("kernel {} with {} blocks of {} threads: {}", kernel.name,
                                                     grid.blocks, grid.threads, what));
  };
  if (grid.blocks < 1 || grid.threads < 1 || grid.threads > kernel.threads)
    return wrong(fmt::format("it takes 1 to {} threads", kernel.threads));
  if (grid.threads % kernel.lanes != 0) return wrong(fmt::format("it takes whole warps of {}", kernel.lanes));
  if (grid.together) {
    ACCORD_ASSIGN_OR_RETURN(const int most, runtime.multiprocessors(device));
    if (grid.blocks > most) return wrong(fmt::format("at most {} of them run together on {}", most, to_string(device)));
  }
  return runtime.launch(kernel, arguments, grid, device, stream);
}

}  // namespace accord::device
