#include "base/busy_guard.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace accord {
namespace {

TEST(BusyGuard, admits_one_at_a_time) {
  std::atomic<bool> busy = false;
  std::optional<BusyGuard> first(std::in_place, busy);
  EXPECT_TRUE(first->entered());
  {
    const BusyGuard second(busy);
    EXPECT_FALSE(second.entered());
  }
  EXPECT_FALSE(BusyGuard(busy).entered());  // the end of a guard that was not admitted changes nothing
  first.reset();
  EXPECT_TRUE(BusyGuard(busy).entered());
}

}  // namespace
}  // namespace accord
