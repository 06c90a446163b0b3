#pragma once
// The runtime of NVIDIA GPUs.

#include "device/runtime.hpp"

namespace accord::device::cuda {

/// Streams are cudaStream_t, events cudaEvent_t, and memory comes from cudaMalloc. A device is initialized only by
/// calls that name it.
Runtime& runtime();

}  // namespace accord::device::cuda
