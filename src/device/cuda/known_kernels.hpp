#pragma once
// All kernels of the program.

#include "accord/status.hpp"

namespace accord::device::cuda {

/// One of them, from when the program or library that has it is loaded; `code` gives what is launched.
class KnownKernel {
 public:
  explicit KnownKernel(const void* (*code)());
};

/// Loads all of them onto the current device, when it is called there first, and lets each be launched with all the shared memory that a block can
/// have there. CUDA would load a kernel when it is first launched, and wait for all that runs on the device then, with a lock held that other calls
/// take: a kernel that waits for one that is to be launched would never end.
Status load_kernels(int device);

}  // namespace accord::device::cuda
