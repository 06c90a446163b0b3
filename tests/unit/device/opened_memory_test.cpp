// The check on which suites between processes rely: without shared memory they skip, and give its reason.
#include "ranks/opened_memory.hpp"

#include <gmock/gmock.h>

#include "device/host_runtime.hpp"

namespace accord::testing {
namespace {

using ::testing::HasSubstr;

constexpr Device kDevice{DeviceType::kCuda, 0};

TEST(OpenedMemory, of_this_process_opens_in_another_one) {
  HostRuntime runtime;
  open_memory_if_asked(runtime, kDevice);
  const Status opens = check_memory_opens(runtime, kDevice);
  EXPECT_TRUE(opens.ok()) << opens.to_string();
  EXPECT_EQ(runtime.live(), LiveObjects{});
}

TEST(OpenedMemory, that_cannot_be_opened_is_reported_with_the_reason_of_the_other_process) {
  HostRuntime runtime;
  if (is_opening_memory()) runtime.fail_next("open_shared", {StatusCode::kUnsupported, "a container forbids it"});
  open_memory_if_asked(runtime, kDevice);
  const Status opens = check_memory_opens(runtime, kDevice);
  EXPECT_EQ(opens.code(), StatusCode::kUnsupported);
  EXPECT_THAT(opens.message(), HasSubstr("cannot open this process's device memory: a container forbids it"));
}

TEST(OpenedMemory, that_has_no_handle_is_reported_without_another_process) {
  ASSERT_FALSE(is_opening_memory());
  HostRuntime runtime;
  runtime.fail_next("share", {StatusCode::kInternal, "no handles here"});
  EXPECT_THAT(check_memory_opens(runtime, kDevice).message(), HasSubstr("no handles here"));
}

TEST(OpenedMemory, is_not_open_if_the_other_process_ends_early) {
  if (is_opening_memory()) std::_Exit(3);
  HostRuntime runtime;
  EXPECT_THAT(check_memory_opens(runtime, kDevice).message(), HasSubstr("it ended without a reply"));
}

}  // namespace
}  // namespace accord::testing
