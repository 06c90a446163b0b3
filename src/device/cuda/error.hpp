#pragma once
// Converts the result of a CUDA call to a Status.

#include <cuda_runtime_api.h>

#include <string_view>

#include "accord/status.hpp"

namespace accord::device::cuda {

/// Returns ok if `result` is cudaSuccess; otherwise "CALL: error message", with kResourceExhausted if memory is
/// exhausted and kInternal for all other errors. Also clears the last error that CUDA keeps, because the next code to
/// query it would be the user's program.
Status status_of(std::string_view call, cudaError_t result);

}  // namespace accord::device::cuda
