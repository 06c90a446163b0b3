// A program's own kernel, as include/accord/channel_device.hpp shows it.
#include <cuda_runtime_api.h>

#include "accord/channel_device.hpp"
#include "conformance/comm/cuda/channel_kernels.hpp"

namespace accord::testing {
namespace {

__global__ void exchange(accord::DeviceChannelHandle to, const float* values, std::size_t count) {
  to.put(0, values, count * sizeof(float), threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    to.signal();
    to.wait();
  }
  __syncthreads();
}

}  // namespace

int launch_exchange(const DeviceChannelHandle& to, const float* values, std::size_t count, void* stream) {
  exchange<<<1, 256, 0, static_cast<cudaStream_t>(stream)>>>(to, values, count);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace accord::testing
