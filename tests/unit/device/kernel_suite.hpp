#pragma once
// What kernels are promised, on any device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "device/device_memory.hpp"
#include "device/sample_kernels.hpp"

namespace accord::testing {

/// `on`: a device and a stream of it that is not the default one.
inline void expect_kernels_run_in_their_stream(const OnDevice& on) {
  const DeviceArray values(on, std::vector<float>(1000, 3.0F), DType::kFloat32);
  auto* const memory = static_cast<float*>(values.buffer().data);
  for (const int blocks : {1, 3})
    ASSERT_TRUE(
        device::launch(on.runtime, Scale{memory, 999, 2.0F}, {.blocks = blocks, .threads = 64}, on.device, on.stream)
            .ok());
  std::vector<float> wanted(1000, 12.0F);
  wanted.back() = 3.0F;
  EXPECT_EQ(values.values<float>(), wanted);
}

inline void expect_threads_meet(const OnDevice& on) {
  constexpr int kBlocks = 3;
  const DeviceArray results(on, std::vector<std::uint64_t>(kBlocks * Meet::kResults, 0), DType::kUInt64);
  const device::Grid grid{.blocks = kBlocks, .threads = 128, .shared_bytes = 128 * sizeof(std::uint64_t)};
  ASSERT_TRUE(
      device::launch(on.runtime, Meet{static_cast<std::uint64_t*>(results.buffer().data)}, grid, on.device, on.stream)
          .ok());
  const auto found = results.values<std::uint64_t>();
  for (int block = 0; block < kBlocks; ++block) {
    const std::uint64_t* const its = &found[static_cast<std::size_t>(block) * Meet::kResults];
    const std::uint64_t threads = its[6], lanes = its[7];
    ASSERT_GT(threads, 1U);
    ASSERT_GT(lanes, 1U);
    EXPECT_EQ(threads % lanes, 0U);
    const std::vector<std::uint64_t> wanted = {
        threads * (threads - 1) / 2, threads - 1, lanes * (lanes - 1) / 2, lanes - 1, lanes - 1,
        threads * (threads - 1) / 2};
    EXPECT_EQ(std::vector<std::uint64_t>(its, its + 6), wanted) << "block " << block;
  }
}

inline void expect_blocks_that_run_together_pass_words(const OnDevice& on) {
  constexpr int kBlocks = 4;
  const DeviceArray words(on, std::vector<std::uint64_t>(2 * kBlocks + 1, 0), DType::kUInt64);
  const DeviceArray packets(on, std::vector<std::uint64_t>(2 * kBlocks, 0), DType::kUInt64);
  auto* const first = static_cast<std::uint64_t*>(words.buffer().data);
  const Relay relay{.tokens = first,
                    .packets = static_cast<device::Packet*>(packets.buffer().data),
                    .data = first + kBlocks,
                    .failures = first + 2 * kBlocks,
                    .rounds = 200};
  ASSERT_TRUE(
      device::launch(on.runtime, relay, {.blocks = kBlocks, .threads = 32, .together = true}, on.device, on.stream)
          .ok());
  const auto found = words.values<std::uint64_t>();
  EXPECT_EQ(std::vector<std::uint64_t>(found.begin(), found.begin() + kBlocks),
            std::vector<std::uint64_t>(kBlocks, 200));
  EXPECT_EQ(found.back(), 0U);
}

// A kernel that has never been launched need not wait for those that run.
inline void expect_a_new_kernel_begins_beside_one_that_waits(const OnDevice& on) {
  const DeviceArray words(on, std::vector<std::uint64_t>(2, 0), DType::kUInt64);
  auto* const word = static_cast<std::uint64_t*>(words.buffer().data);
  const Stream other = on.runtime.create_stream(on.device, false).value();
  const device::Grid grid{.blocks = 1, .threads = 32};
  ASSERT_TRUE(device::launch(on.runtime, AwaitWord{word, word + 1}, grid, on.device, on.stream).ok());
  ASSERT_TRUE(device::launch(on.runtime, SetWord{word}, grid, on.device, other).ok());
  EXPECT_EQ(words.values<std::uint64_t>(), (std::vector<std::uint64_t>{1, 0}));
  EXPECT_TRUE(on.runtime.synchronize(on.device, other).ok());
  EXPECT_TRUE(on.runtime.destroy_stream(on.device, other).ok());
}

inline void expect_grids_that_cannot_be_are_refused(const OnDevice& on) {
  const Scale nothing{nullptr, 0, 1.0F};
  const int most = on.runtime.multiprocessors(on.device).value();
  EXPECT_GT(most, 0);
  const auto refused = [&](const device::Grid& grid) {
    return device::launch(on.runtime, nothing, grid, on.device, on.stream).message();
  };
  EXPECT_THAT(refused({.blocks = 0}), ::testing::HasSubstr("kernel test_scale with 0 blocks"));
  EXPECT_THAT(refused({.threads = 512}), ::testing::HasSubstr("1 to 256 threads"));
  EXPECT_THAT(refused({.blocks = most + 1, .together = true}), ::testing::HasSubstr("run together on cuda:0"));
}

inline void expect_memory_is_filled(const OnDevice& on) {
  const DeviceArray values(on, std::vector<std::uint8_t>{1, 2, 3, 4}, DType::kUInt8);
  auto* const memory = static_cast<std::byte*>(values.buffer().data);
  ASSERT_TRUE(on.runtime.fill(memory + 1, 0x5A, 2, on.device, on.stream).ok());
  EXPECT_EQ(values.values<std::uint8_t>(), (std::vector<std::uint8_t>{1, 0x5A, 0x5A, 4}));
}

}  // namespace accord::testing
