#pragma once
// Threads for calls of NCCL that wait for other ranks or for the GPU.

#include <functional>

namespace accord::comm::nccl {

/// Runs `call` in a thread of its own. exit() waits for these threads, for a few seconds at most, because they are
/// inside CUDA and NCCL, which shut down next.
void run_in_thread(std::function<void()> call);

}  // namespace accord::comm::nccl
