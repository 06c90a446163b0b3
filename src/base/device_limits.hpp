#pragma once
// Limits of NCCL's kernels on a GPU.

namespace accord {

inline constexpr int kMaxCtas = 64;        ///< thread blocks per call
inline constexpr int kLargestCluster = 8;  ///< of thread blocks

}  // namespace accord
