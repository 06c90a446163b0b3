#pragma once
// Division of integers by a number that is known when a kernel is launched: one multiplication instead of the twenty
// instructions of a division (Granlund, Montgomery 1994).

#include <cstdint>

#include "device/kernel.hpp"

namespace accord::device {

class Divisor {
 public:
  Divisor() = default;
  /// REQUIRES: 0 < by < 2^31.
  explicit Divisor(std::uint32_t by) : by_(by) {
    while ((std::uint64_t{1} << shift_) < by) ++shift_;
    multiplier_ = static_cast<std::uint32_t>((((std::uint64_t{1} << shift_) - by) << 32) / by + 1);
  }

  ACCORD_ON_DEVICE std::uint32_t by() const { return by_; }
  /// Returns n / by, rounded down. REQUIRES: n < 2^31.
  ACCORD_ON_DEVICE std::uint32_t quotient(std::uint32_t n) const {
#ifdef __CUDA_ARCH__
    const std::uint32_t high = __umulhi(n, multiplier_);
#else
    const auto high = static_cast<std::uint32_t>((std::uint64_t{n} * multiplier_) >> 32);
#endif
    return (high + n) >> shift_;
  }

 private:
  std::uint32_t by_ = 1, multiplier_ = 1;
  std::uint32_t shift_ = 0;
};

}  // namespace accord::device
