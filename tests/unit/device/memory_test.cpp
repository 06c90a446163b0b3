#include "device/memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/host_runtime.hpp"

namespace accord::device {
namespace {

using ::testing::HasSubstr;

constexpr Device kDevice{DeviceType::kCuda, 0};

struct DeviceMemoryTest : ::testing::Test {
  accord::testing::HostRuntime runtime{1};
};

TEST_F(DeviceMemoryTest, is_released_once_by_its_last_owner) {
  const auto before = runtime.live().allocations;
  {
    Memory first = Memory::allocate(runtime, kDevice, 100, "a test").value();
    EXPECT_NE(first.data(), nullptr);
    EXPECT_EQ(first.size(), 100U);
    Memory second = std::move(first);
    second = Memory::allocate(runtime, kDevice, 200, "a test").value();
    EXPECT_EQ(second.size(), 200U);
    EXPECT_EQ(runtime.live().allocations, before + 1);
  }
  EXPECT_EQ(runtime.live().allocations, before);
}

TEST_F(DeviceMemoryTest, of_the_host_is_pinned) {
  const auto before = runtime.live();
  {
    Memory first = Memory::allocate_host(runtime, kDevice, 100, "a test").value();
    EXPECT_EQ(runtime.device_of(first.data()).value(), std::nullopt);
    EXPECT_TRUE(runtime.holds(first.data(), 100));
    Memory second;
    second = std::move(first);
    EXPECT_EQ(runtime.live().host_allocations, before.host_allocations + 1);
  }
  EXPECT_EQ(runtime.live(), before);
  runtime.fail_next("allocate_host", {StatusCode::kResourceExhausted, "no more of that"});
  EXPECT_THAT(Memory::allocate_host(runtime, kDevice, 100, "a test").status().message(),
              HasSubstr("100 B for a test: no more of that"));
}

TEST_F(DeviceMemoryTest, that_is_leaked_stays_allocated) {
  Memory memory = Memory::allocate(runtime, kDevice, 100, "a test").value();
  void* const data = memory.data();
  memory.leak();
  EXPECT_EQ(memory.data(), nullptr);
  EXPECT_TRUE(runtime.release(kDevice, data).ok());
}

TEST_F(DeviceMemoryTest, without_bytes_allocates_nothing) {
  runtime.fail_next("allocate", {StatusCode::kResourceExhausted, "no more of that"});
  EXPECT_EQ(Memory::allocate(runtime, kDevice, 0, "a test").value().data(), nullptr);
  const Status refused = Memory::allocate(runtime, kDevice, 100, "a test").status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("100 B for a test: no more of that"));
}

}  // namespace
}  // namespace accord::device
