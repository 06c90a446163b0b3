#include "device/cuda/error.hpp"

#include <fmt/format.h>

namespace accord::device::cuda {

Status status_of(std::string_view call, cudaError_t said) {
  if (said == cudaSuccess) return {};
  (void)cudaGetLastError();
  const bool no_memory = said == cudaErrorMemoryAllocation;
  return Status(no_memory ? StatusCode::kResourceExhausted : StatusCode::kInternal,
                fmt::format("{}: {}", call, cudaGetErrorString(said)));
}

}  // namespace accord::device::cuda
