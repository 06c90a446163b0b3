#include "base/busy_guard.hpp"

#include <gtest/gtest.h>

namespace accord {
namespace {

TEST(BusyGuard, admits_one_at_a_time) {
  std::atomic<bool> busy = false;
  {
    const BusyGuard first(busy);
    EXPECT_TRUE(first.entered());
    {
      const BusyGuard second(busy);
      EXPECT_FALSE(second.entered());
    }
    EXPECT_FALSE(BusyGuard(busy).entered());  // the end of a guard that was not admitted changes nothing
  }
  EXPECT_TRUE(BusyGuard(busy).entered());
}

}  // namespace
}  // namespace accord
