#pragma once
// Shared by the parts of bench_gpu.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::bench {

inline constexpr int kSkipped = 77;
inline constexpr Device kDevice{DeviceType::kCuda, 0};
using Micros = std::chrono::duration<double, std::micro>;

[[noreturn]] inline void fail(const std::string& message) {
  std::fprintf(stderr, "bench_gpu: %s\n", message.c_str());
  std::fflush(stdout);
  std::_Exit(1);  // other threads may be inside CUDA
}
inline void check(const Status& status) {
  if (!status.ok()) fail(status.to_string());
}
inline void check(cudaError_t result) {
  if (result != cudaSuccess) fail(cudaGetErrorString(result));
}
template <typename T>
T value_of(Result<T> result) {
  check(result.status());
  return *std::move(result);
}

struct Figure {
  double device_us = 0;
  double host_us = 0;
};

/// Measures `put`, which enqueues one call on the stream. Returns the best of three rounds.
inline Figure measure(cudaStream_t stream, int calls, const std::function<void()>& put) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  Figure best{.device_us = 1e12, .host_us = 1e12};
  for (int round = 0; round < 4; ++round) {  // the first round is warm-up
    check(cudaEventRecord(begin, stream));
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) put();
    const double host = Micros(std::chrono::steady_clock::now() - began).count() / calls;
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round == 0) continue;
    best.host_us = std::min(best.host_us, host);
    best.device_us = std::min(best.device_us, 1e3 * milliseconds / calls);
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  return best;
}

inline void print(int ranks, const char* as, const char* operation, std::size_t bytes, const char* by,
                  const Figure& figure) {
  std::printf(R"({"ranks":%d,"as":"%s","what":"%s","bytes":%zu,"by":"%s","device_us":%.3f,"host_us":%.3f})"
              "\n",
              ranks, as, operation, bytes, by, figure.device_us, figure.host_us);
  std::fflush(stdout);
}

/// Runs ranks as threads. Returns the exit code.
int run_threads(int size);

}  // namespace accord::bench
