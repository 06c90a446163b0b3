#include "base/log.hpp"

#include <gmock/gmock.h>

namespace accord {
namespace {

TEST(Log, writes_warnings_to_standard_error_and_is_quiet_otherwise) {
  testing::internal::CaptureStderr();
  log().warn("rank {} is late", 3);
  log().debug("not shown");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::HasSubstr("accord warning] rank 3 is late"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("not shown")));
}

}  // namespace
}  // namespace accord
