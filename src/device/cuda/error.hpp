#pragma once
// What a call of CUDA says, as a Status.

#include <cuda_runtime_api.h>

#include <string_view>

#include "accord/status.hpp"

namespace accord::device::cuda {

/// Ok if `said` is cudaSuccess; else "CALL: what it said", kResourceExhausted for memory that is not there, all others kInternal. CUDA
/// keeps its last error for whoever asks next, who is the user's program: it is cleared.
Status status_of(std::string_view call, cudaError_t said);

}  // namespace accord::device::cuda
