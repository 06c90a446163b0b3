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
  if (type == DeviceType::kCpu)
    return Status(StatusCode::kInvalidArgument, "the cpu has no device runtime and no streams");
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
  const auto invalid_grid = [&](std::string_view reason) {
    return Status(StatusCode::kInternal, fmt::format("kernel {} with {} blocks of {} threads: {}", kernel.name,
                                                     grid.blocks, grid.threads, reason));
  };
  if (grid.blocks < 1 || grid.threads < 1 || grid.threads > kernel.threads)
    return invalid_grid(fmt::format("a block must have 1 to {} threads", kernel.threads));
  if (grid.threads % kernel.lanes != 0)
    return invalid_grid(fmt::format("the number of threads must be a multiple of {}", kernel.lanes));
  if (grid.together) {
    ACCORD_ASSIGN_OR_RETURN(const int max_blocks, runtime.multiprocessors(device));
    if (grid.blocks > max_blocks)
      return invalid_grid(fmt::format("at most {} blocks run at the same time on {}", max_blocks, to_string(device)));
  }
  return runtime.launch(kernel, arguments, grid, device, stream);
}

}  // namespace accord::device
