#pragma once
// The guarantees that kernels have on any device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "device/device_memory.hpp"
#include "device/numbers.hpp"
#include "device/sample_kernels.hpp"

namespace accord::testing {

/// `on`: a device and one of its streams other than the default stream.
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

inline void expect_threads_synchronize(const OnDevice& on) {
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

inline void expect_concurrent_blocks_exchange_words(const OnDevice& on) {
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

// Each kernel reads what the one before it has written, in a stream and in a graph. Enough blocks for several rounds on
// any device, so that a kernel's first blocks can start while the last ones of the kernel before it still run.
inline void expect_kernels_that_start_early_see_earlier_ones(const OnDevice& on) {
  constexpr std::size_t kCount = 1 << 20;
  constexpr int kKernels = 20;
  const bool is_host = on.runtime.multiprocessors(on.device).value() < 32;  // where threads are fibers
  const std::size_t count = is_host ? 1 << 12 : kCount;
  const DeviceArray values(on, std::vector<float>(count, 0.0F), DType::kFloat32);
  auto* const memory = static_cast<float*>(values.buffer().data);
  const auto launch_all = [&] {
    for (int i = 0; i < kKernels; ++i) {
      const device::Grid grid{.blocks = is_host ? 3 : static_cast<int>(count / 256), .threads = 256};
      ACCORD_RETURN_IF_ERROR(device::launch(on.runtime, AddOne{memory, count}, grid, on.device, on.stream));
      ACCORD_RETURN_IF_ERROR(device::launch(on.runtime, Scale{memory, count, 0.5F}, grid, on.device, on.stream));
      ACCORD_RETURN_IF_ERROR(device::launch(on.runtime, AddOne{memory, count}, grid, on.device, on.stream));
    }
    return Status();
  };
  const Result<device::Graph> graph = on.runtime.capture(on.device, on.stream, launch_all);
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  float expected = 0.0F;
  for (int run = 0; run < 4; ++run) {
    const Status launched = run % 2 == 0 ? launch_all() : on.runtime.launch_graph(*graph, on.device, on.stream);
    ASSERT_TRUE(launched.ok()) << launched.to_string();
    for (int i = 0; i < kKernels; ++i) expected = (expected + 1.0F) * 0.5F + 1.0F;
    EXPECT_THAT(values.values<float>(), ::testing::Each(expected));
  }
  EXPECT_TRUE(on.runtime.destroy_graph(*graph).ok());
}

// A kernel that has never been launched does not have to wait for running kernels.
inline void expect_a_new_kernel_starts_while_another_waits(const OnDevice& on) {
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

// A graph is ready when its capture ends: neither the rest of the capture nor the first launch waits for a kernel of
// another stream, which here waits for the graph.
inline void expect_a_captured_graph_starts_while_a_kernel_waits(const OnDevice& on) {
  const DeviceArray words(on, std::vector<std::uint64_t>(2, 0), DType::kUInt64);
  auto* const word = static_cast<std::uint64_t*>(words.buffer().data);
  const Stream other = on.runtime.create_stream(on.device, false).value();
  const device::Grid grid{.blocks = 1, .threads = 32};
  ASSERT_TRUE(device::launch(on.runtime, AwaitWord{word, word + 1}, grid, on.device, on.stream).ok());
  const Result<device::Graph> graph = on.runtime.capture(
      on.device, other, [&] { return device::launch(on.runtime, SetWord{word}, grid, on.device, other); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_TRUE(on.runtime.launch_graph(*graph, on.device, other).ok());
  EXPECT_EQ(words.values<std::uint64_t>(), (std::vector<std::uint64_t>{1, 0}));
  EXPECT_TRUE(on.runtime.synchronize(on.device, other).ok());
  EXPECT_TRUE(on.runtime.destroy_graph(*graph).ok());
  EXPECT_TRUE(on.runtime.destroy_stream(on.device, other).ok());
}

/// Compares products of random matrices with the sums that define them.
template <DType kDType>
void expect_warps_multiply_matrices(const OnDevice& on) {
  using Kernel = MultiplyTiles<kDType>;
  constexpr int kMatrices = 7, kAll = kMatrices * Kernel::kCount;
  const auto narrow = [](float x) {
    return kDType == DType::kBFloat16 ? device::to_bfloat16(x) : device::to_float16(x);
  };
  const auto wide = [](std::uint16_t x) {
    return kDType == DType::kBFloat16 ? device::from_bfloat16(x) : device::from_float16(x);
  };
  std::mt19937 random(1);
  std::uniform_real_distribution<float> numbers(-2.0F, 2.0F);
  std::vector<std::uint16_t> a(kAll), b(kAll);
  std::vector<float> c(kAll);
  for (auto* const matrix : {&a, &b})
    for (std::uint16_t& x : *matrix) x = narrow(numbers(random));
  for (float& x : c) x = numbers(random);
  const DeviceArray on_a(on, a, DType::kUInt16), on_b(on, b, DType::kUInt16), on_c(on, c, DType::kFloat32);
  const Kernel kernel{static_cast<const std::uint16_t*>(on_a.buffer().data),
                      static_cast<const std::uint16_t*>(on_b.buffer().data), static_cast<float*>(on_c.buffer().data),
                      kMatrices};
  ASSERT_TRUE(device::launch(on.runtime, kernel, {.blocks = 2, .threads = 64, .shared_bytes = Kernel::shared_bytes(64)},
                             on.device, on.stream)
                  .ok());
  const auto found = on_c.template values<float>();
  for (int i = 0; i < kAll; ++i) {
    const int matrix = i / Kernel::kCount * Kernel::kCount, row = i % Kernel::kCount / 16, column = i % 16;
    double sum = c[static_cast<std::size_t>(i)];
    for (int k = 0; k < 16; ++k)
      sum += double{wide(a[static_cast<std::size_t>(matrix + row * 16 + k)])} *
             double{wide(b[static_cast<std::size_t>(matrix + k * 16 + column)])};
    ASSERT_NEAR(double{found[static_cast<std::size_t>(i)]}, sum, 2e-5) << "row " << row << ", column " << column;
  }
}

inline void expect_invalid_grids_are_rejected(const OnDevice& on) {
  const Scale nothing{nullptr, 0, 1.0F};
  const int most = on.runtime.multiprocessors(on.device).value();
  EXPECT_GT(most, 0);
  const auto refused = [&](const device::Grid& grid) {
    return device::launch(on.runtime, nothing, grid, on.device, on.stream).message();
  };
  EXPECT_THAT(refused({.blocks = 0}), ::testing::HasSubstr("kernel test_scale with 0 blocks"));
  EXPECT_THAT(refused({.threads = 512}), ::testing::HasSubstr("1 to 256 threads"));
  const MultiplyTiles<DType::kBFloat16> of_warps{};
  EXPECT_THAT(
      device::launch(on.runtime, of_warps, {.threads = 48}, on.device, on.stream).message(),
      ::testing::HasSubstr(
          "test_multiply_bfloat16 with 1 blocks of 48 threads: the number of threads must be a multiple of 32"));
  EXPECT_THAT(refused({.blocks = most + 1, .together = true}),
              ::testing::HasSubstr("blocks run at the same time on cuda:0"));
}

inline void expect_memory_is_filled(const OnDevice& on) {
  const DeviceArray values(on, std::vector<std::uint8_t>{1, 2, 3, 4}, DType::kUInt8);
  auto* const memory = static_cast<std::byte*>(values.buffer().data);
  ASSERT_TRUE(on.runtime.fill(memory + 1, 0x5A, 2, on.device, on.stream).ok());
  EXPECT_EQ(values.values<std::uint8_t>(), (std::vector<std::uint8_t>{1, 0x5A, 0x5A, 4}));
}

}  // namespace accord::testing
