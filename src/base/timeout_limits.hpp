#pragma once
// What a timeout that a user gives may be.

namespace accord {

inline constexpr double kShortestTimeout = 0.001;  ///< seconds
/// Seconds: ten years, longer than any job, far below what nanoseconds in 64 bits can hold.
inline constexpr double kLongestTimeout = 315'360'000;

}  // namespace accord
