// Memory of devices over host memory.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "device/host_runtime.hpp"

namespace accord::testing {
namespace {

struct HostMemory : ::testing::Test {
  static constexpr Device kFirst{DeviceType::kCuda, 0}, kSecond{DeviceType::kCuda, 1};
  HostRuntime runtime{2};
};

TEST_F(HostMemory, the_device_of_any_address_inside_an_allocation_is_found) {
  void* const first = runtime.allocate(kFirst, 100).value();
  void* const second = runtime.allocate(kSecond, 1).value();
  void* const host = runtime.allocate_host(kFirst, 8).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0);
  EXPECT_EQ(runtime.device_of(static_cast<char*>(first) + 99).value(), kFirst);
  EXPECT_EQ(runtime.device_of(static_cast<char*>(first) + 100).value(), std::nullopt);
  EXPECT_EQ(runtime.device_of(second).value(), kSecond);
  EXPECT_EQ(runtime.device_of(host).value(), std::nullopt);
  EXPECT_EQ(runtime.device_of(&runtime).value(), std::nullopt);
  EXPECT_TRUE(runtime.holds(host, 8));
  EXPECT_FALSE(runtime.holds(host, 9));

  EXPECT_EQ(runtime.live(), (LiveObjects{.allocations = 2, .host_allocations = 1}));
  EXPECT_EQ(runtime.release(kSecond, first).code(), StatusCode::kInternal);
  EXPECT_EQ(runtime.release_host(kFirst, first).code(), StatusCode::kInternal);
  EXPECT_TRUE(runtime.release(kFirst, first).ok());
  EXPECT_FALSE(runtime.release(kFirst, first).ok());
  EXPECT_TRUE(runtime.release(kSecond, second).ok());
  EXPECT_TRUE(runtime.release_host(kFirst, host).ok());
  EXPECT_EQ(runtime.live(), LiveObjects{});
}

TEST_F(HostMemory, mapped_allocations_are_found_behind_a_range) {
  constexpr std::size_t kSize = HostRuntime::kMapGranularity;
  auto* const memory = static_cast<char*>(runtime.allocate_mapped(kSecond, {kSize, 2 * kSize}).value());
  const auto behind = [&](std::size_t offset, std::size_t bytes) {
    return runtime.mapped_memory(kSecond, memory + offset, bytes).value();
  };
  EXPECT_EQ(behind(0, kSize).allocations, 1);
  EXPECT_EQ(behind(kSize, 2 * kSize).bytes, 2 * kSize);
  EXPECT_EQ(behind(kSize + 8, 8).offset, 8U);
  EXPECT_EQ(behind(kSize - 1, 2).allocations, 2);
  EXPECT_EQ(behind(kSize - 1, 2).bytes, 3 * kSize);
  EXPECT_EQ(behind(kSize - 1, 2).offset, kSize - 1);
  EXPECT_EQ(behind(0, 3 * kSize + 1).allocations, 0);
  EXPECT_EQ(runtime.mapped_memory(kFirst, memory, 1).value().allocations, 0);  // another device's
  void* const plain = runtime.allocate(kSecond, kSize).value();
  EXPECT_EQ(runtime.mapped_memory(kSecond, plain, 1).value().allocations, 0);
  UniqueFd descriptor;
  EXPECT_FALSE(runtime.share(kSecond, memory, 2 * kSize, descriptor).ok());  // in two allocations
  EXPECT_EQ(runtime.share(kSecond, memory + 8, kSize, descriptor).ok(), false);
  EXPECT_TRUE(runtime.release(kSecond, plain).ok());
  EXPECT_TRUE(runtime.release(kSecond, memory).ok());
}

}  // namespace
}  // namespace accord::testing
