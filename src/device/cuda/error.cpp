#include "device/cuda/error.hpp"

#include <fmt/format.h>

namespace accord::device::cuda {

Status status_of(std::string_view call, cudaError_t result) {
  if (result == cudaSuccess) return {};
  (void)cudaGetLastError();
  const bool no_memory = result == cudaErrorMemoryAllocation;
  return Status(no_memory ? StatusCode::kResourceExhausted : StatusCode::kInternal,
                fmt::format("{}: {}", call, cudaGetErrorString(result)));
}

}  // namespace accord::device::cuda
