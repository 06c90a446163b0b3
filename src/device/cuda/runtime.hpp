#pragma once
// The devices of NVIDIA.

#include "device/runtime.hpp"

namespace accord::device::cuda {

/// Streams are cudaStream_t, events cudaEvent_t, memory is that of cudaMalloc. Nothing begins to use a device but what names it.
Runtime& runtime();

}  // namespace accord::device::cuda
