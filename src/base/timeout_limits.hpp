#pragma once
// Range of the timeouts that a user may set.

namespace accord {

inline constexpr double kShortestTimeout = 0.001;  ///< seconds
/// Seconds: ten years, longer than any job and far below the limit of nanoseconds in 64 bits.
inline constexpr double kLongestTimeout = 315'360'000;

}  // namespace accord
