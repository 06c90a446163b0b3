#pragma once
// Registry of all kernels of the program, and what each device can do with them.

#include "accord/status.hpp"

namespace accord::device::cuda {

/// Registers a kernel when the program or library that contains it is loaded. `code` returns the function to launch.
class KnownKernel {
 public:
  explicit KnownKernel(const void* (*code)());
};

/// Loads all registered kernels onto `device`, which must be current, on the first call for that device. Lets each
/// kernel use all the shared memory that a block can have there.
/// Left alone, CUDA would load a kernel at its first launch. It would then wait for everything that runs on the
/// device, while holding a lock that other calls need. A running kernel that waits for a kernel still to be launched
/// would never end.
Status load_kernels(int device);

/// Whether a kernel may be launched on `device` before the one before it has ended, in graphs too: from compute
/// capability 9.0 and CUDA 12.3 on, and unless ACCORD_KERNEL_OVERLAP is off. REQUIRES: load_kernels(device).
bool kernels_can_overlap(int device);

}  // namespace accord::device::cuda
