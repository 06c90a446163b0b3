#pragma once
// Threads for calls of NCCL that wait for other ranks or for the GPU.

#include <functional>

#include "accord/status.hpp"

namespace accord::comm::nccl {

/// Runs `call` in a thread of its own. exit() waits for these threads, for a few seconds at most, because they are
/// inside CUDA and NCCL, which shut down next. kResourceExhausted: there is no thread, and nothing runs.
Status run_in_thread(std::function<void()> call);

}  // namespace accord::comm::nccl
