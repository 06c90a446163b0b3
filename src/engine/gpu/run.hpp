#pragma once
// The environment of a program's steps on a device, and how they launch kernels into its stream.

#include <algorithm>

#include "device/blas.hpp"
#include "device/kernel.hpp"
#include "device/runtime.hpp"
#include "engine/gpu/cache.hpp"
#include "engine/program/tensor.hpp"

namespace accord::engine {

/// The state of one run. Its kernels run one after another in `stream`.
struct DeviceRun : TargetRun {
  device::Runtime& runtime;
  device::Blas& blas;
  Device device;
  Stream stream;
  int multiprocessors = 1;
  Fault* fault = nullptr;              ///< on the device
  void* workspace = nullptr;           ///< blas.workspace_bytes() bytes
  const DeviceCache* cache = nullptr;  ///< set for programs with cached attention
  BatchTables batch = {};              ///< the sequences whose rows such a program computes
  BatchKind batch_kind = BatchKind::kMixed;
  /// kArrivals words on the device for blocks that count each other. A kernel finds and leaves them at 0.
  std::uint64_t* arrivals = nullptr;
};
inline constexpr std::int64_t kArrivals = 65536;

/// The most shared memory that a block of any of these kernels has.
inline constexpr std::size_t kMaxSharedBytes = std::size_t{160} << 10;

/// REQUIRES: the program's target is a GPU.
inline const DeviceRun& device_run(const Execution& execution) {
  return static_cast<const DeviceRun&>(*execution.target);
}

inline std::int64_t ceil_divide(std::int64_t count, std::int64_t each) { return (count + each - 1) / each; }

/// Launches as many blocks as there is work for, but no more than fill the device several times over (kTurns blocks
/// for each multiprocessor). Kernels loop over the rest.
template <typename K>
Status launch_blocks(const DeviceRun& run, const K& kernel, std::int64_t blocks, std::size_t shared_bytes = 0) {
  constexpr int kTurns = 32;
  if (blocks <= 0) return Status();
  const auto max_blocks = static_cast<std::int64_t>(run.multiprocessors) * kTurns;
  const device::Grid grid{static_cast<int>(std::min(blocks, max_blocks)), K::kThreads, shared_bytes};
  return device::launch(run.runtime, kernel, grid, run.device, run.stream);
}

/// Launches a thread for each of `count` elements.
template <typename K>
Status launch_over(const DeviceRun& run, const K& kernel, std::int64_t count) {
  return launch_blocks(run, kernel, ceil_divide(count, K::kThreads));
}

}  // namespace accord::engine
