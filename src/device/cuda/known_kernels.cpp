#include "device/cuda/known_kernels.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "base/config.hpp"
#include "device/cuda/error.hpp"

namespace accord::device::cuda {
namespace {

constexpr std::size_t kMaxDevices = 64;  // per host

struct Known {
  std::mutex mutex;
  std::vector<const void* (*)()> codes;
  std::array<std::atomic<std::size_t>, kMaxDevices> loaded = {};  ///< number of kernels loaded on each device
  std::array<std::atomic<bool>, kMaxDevices> overlap = {};        ///< whether kernels can overlap on each device
};

// Created on first use, because objects in several files register themselves before main().
Known& known() {
  static Known all;
  return all;
}

/// Drivers before CUDA 12.3 cannot express the dependency in a graph.
Result<bool> find_overlap(int device) {
  constexpr int kFirstMajor = 9, kFirstVersion = 12030;
  int major = 0, version = 0;
  ACCORD_RETURN_IF_ERROR(
      status_of("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)));
  ACCORD_RETURN_IF_ERROR(status_of("cudaDriverGetVersion", cudaDriverGetVersion(&version)));
  return major >= kFirstMajor && version >= kFirstVersion && (!config().ok() || config()->kernel_overlap);
}

}  // namespace

KnownKernel::KnownKernel(const void* (*code)()) {
  const std::lock_guard lock(known().mutex);
  known().codes.push_back(code);
}

Status load_kernels(int device) {
  const auto index = static_cast<std::size_t>(device);
  if (index >= kMaxDevices)
    return Status(
        StatusCode::kUnsupported,
        fmt::format("at most {} devices per host are supported; device {} is beyond that", kMaxDevices, device));
  std::atomic<std::size_t>& loaded = known().loaded[index];
  if (loaded.load(std::memory_order_acquire) > 0) return {};
  const std::lock_guard lock(known().mutex);
  ACCORD_ASSIGN_OR_RETURN(const bool overlap, find_overlap(device));
  known().overlap[index].store(overlap, std::memory_order_relaxed);
  int shared_bytes = 0;
  ACCORD_RETURN_IF_ERROR(
      status_of("cudaDeviceGetAttribute",
                cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)));
  for (std::size_t i = loaded; i < known().codes.size(); ++i) {
    const void* const code = known().codes[i]();
    cudaFuncAttributes attributes;
    ACCORD_RETURN_IF_ERROR(status_of("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, code)));
    const int left = shared_bytes - static_cast<int>(attributes.sharedSizeBytes);
    ACCORD_RETURN_IF_ERROR(status_of("cudaFuncSetAttribute",
                                     cudaFuncSetAttribute(code, cudaFuncAttributeMaxDynamicSharedMemorySize, left)));
  }
  loaded.store(known().codes.size(), std::memory_order_release);
  return {};
}

bool kernels_can_overlap(int device) {
  return known().overlap[static_cast<std::size_t>(device)].load(std::memory_order_relaxed);
}

}  // namespace accord::device::cuda
