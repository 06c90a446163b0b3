#include "device/divisor.hpp"

#include <gtest/gtest.h>

#include <random>

namespace accord::device {
namespace {

TEST(Divisor, divides_like_an_integer_division) {
  constexpr std::uint32_t kLargest = (std::uint32_t{1} << 31) - 1;
  std::mt19937 random(3);
  std::vector<std::uint32_t> numbers = {0, 1, 2, 3, 7, 8, 9, 1000, 4095, 4096, kLargest - 1, kLargest};
  for (int i = 0; i < 500; ++i) numbers.push_back(static_cast<std::uint32_t>(random() >> (1 + i % 31)));
  for (const std::uint32_t by : numbers) {
    if (by == 0) continue;
    const Divisor divisor(by);
    EXPECT_EQ(divisor.by(), by);
    for (const std::uint32_t n : numbers) {
      ASSERT_EQ(divisor.quotient(n), n / by) << n << " / " << by;
      const std::uint64_t multiple = std::uint64_t{n} / by * by;
      ASSERT_EQ(divisor.quotient(static_cast<std::uint32_t>(multiple)), multiple / by);
      if (multiple > 0) {
        ASSERT_EQ(divisor.quotient(static_cast<std::uint32_t>(multiple - 1)), (multiple - 1) / by);
      }
    }
  }
  EXPECT_EQ(Divisor().quotient(17), 17);
}

}  // namespace
}  // namespace accord::device
