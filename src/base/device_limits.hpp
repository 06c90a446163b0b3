#pragma once
// What NCCL takes of a GPU.

namespace accord {

inline constexpr int kMostCtas = 64;       ///< thread blocks
inline constexpr int kLargestCluster = 8;  ///< of thread blocks

}  // namespace accord
