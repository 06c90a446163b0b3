// Calls on devices whose plans read and write the buffers of other ranks in windows.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "comm/group.hpp"
#include "conformance/comm/host_devices.hpp"
#include "device/nccl_control.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OnDevice;

/// Elements in windows of a communicator. The first ones are at offsets that differ from rank to rank, and in different
/// windows.
class WindowArrays {
 public:
  WindowArrays(Communicator& comm, const OnDevice& on, std::size_t bytes = 2 << 20)
      : on_(on), next_(256 * static_cast<std::size_t>(comm.rank())) {
    for (int i = 0; i < 2; ++i) {
      Result<DeviceWindow> window = comm.device_window(bytes, on.device);
      EXPECT_TRUE(window.ok()) << window.status().to_string();
      EXPECT_TRUE(window->is_direct());
      windows_.push_back(*std::move(window));
    }
    if (comm.rank() % 2 == 1) std::swap(windows_[0], windows_[1]);
  }

  template <typename T>
  Buffer of(const std::vector<T>& values, DType dtype, std::size_t misaligned = 0) {
    const Buffer buffer = windows_[0].buffer(values.size(), dtype, next_ + misaligned);
    next_ += (buffer.bytes() + misaligned + 255) / 256 * 256;
    EXPECT_TRUE(on_.runtime.copy(buffer.data, values.data(), buffer.bytes(), on_.device, on_.stream).ok());
    on_.synchronize();
    return buffer;
  }
  template <typename T>
  std::vector<T> values_in(const Buffer& buffer) const {
    std::vector<T> values(buffer.bytes() / sizeof(T));
    on_.synchronize();
    EXPECT_TRUE(on_.runtime.copy(values.data(), buffer.data, buffer.bytes(), on_.device, on_.stream).ok());
    on_.synchronize();
    return values;
  }
  const DeviceWindow& window() const { return windows_[0]; }
  void clear() { next_ = 0; }

 private:
  const OnDevice on_;
  std::vector<DeviceWindow> windows_;
  std::size_t next_ = 0;
};

class DeviceDirect : public testing::HostDevices {
 protected:
  /// All calls by plans, sums in windows by these.
  static CommunicatorOptions directly(const std::string& algorithm) {
    return {.timeout = std::chrono::seconds(60),
            .select = std::string(testing::kByPlans) + ";all_reduce[memory=cuda]:0-inf=" + algorithm,
            .hints = "max_ctas=3"};
  }
  static std::vector<float> some(int rank, std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::vector<float> values(count);
    for (float& value : values) value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 30) - 40);
    return values;
  }
  static int calls_of(std::string_view function) {
    const std::vector<std::string> log = testing::log_of(0);
    return static_cast<int>(
        std::ranges::count_if(log, [&](const std::string& line) { return line.starts_with(function); }));
  }
};

TEST_F(DeviceDirect, sums_are_bit_identical_to_the_cpu) {
  for (const char* const algorithm : {"one_shot_zero_copy", "two_shot_zero_copy"}) {
    for (const int size : {1, 2, 3, 5, 8}) {
      on_ranks(size, directly(algorithm), [&](Communicator& comm, const OnDevice& on) {
        WindowArrays arrays(comm, on);
        for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{30001}}) {
          for (const std::size_t misaligned : {0, 4}) {
            const std::vector<float> mine = some(comm.rank(), count);
            std::vector<float> expected = mine;
            ASSERT_TRUE(comm.all_reduce(Buffer{expected.data(), count, DType::kFloat32}, ReduceOp::kSum).ok());
            const Buffer input = arrays.of(mine, DType::kFloat32, misaligned);
            const Buffer output = arrays.of(std::vector<float>(count), DType::kFloat32, misaligned);
            const Status status = comm.all_reduce(input, output, ReduceOp::kSum, {.stream = on.stream});
            ASSERT_TRUE(status.ok()) << status.to_string();
            EXPECT_EQ(arrays.values_in<float>(output), expected) << algorithm << ", " << count;
            EXPECT_EQ(arrays.values_in<float>(input), mine);
            // In place, where one shot has no plan.
            ASSERT_TRUE(comm.all_reduce(input, ReduceOp::kSum, {.stream = on.stream}).ok());
            EXPECT_EQ(arrays.values_in<float>(input), expected) << algorithm << " in place, " << count;
            arrays.clear();
          }
        }
      });
    }
  }
}

TEST_F(DeviceDirect, collectives_in_windows_match_a_plain_computation) {
  CommunicatorOptions options{.timeout = std::chrono::seconds(60), .hints = "max_ctas=3"};
  for (const char* const name :
       {"broadcast", "all_gather", "reduce_scatter", "reduce", "gather", "scatter", "all_to_all"})
    options.select += std::string(name) + "[memory=cuda]:0-inf=zero_copy;";
  on_ranks(3, options, [](Communicator& comm, const OnDevice& on) {
    const CallOptions in_stream{.stream = on.stream};
    const auto me = static_cast<std::size_t>(comm.rank());
    constexpr std::size_t kCount = 5003;
    WindowArrays arrays(comm, on);
    const auto ints = [](std::size_t rank, std::size_t count) {
      std::vector<std::int32_t> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::int32_t>(i + 100000 * rank);
      return values;
    };
    const auto part_of = [](const std::vector<std::int32_t>& all, std::size_t part) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(part * kCount);
      return std::vector<std::int32_t>(first, first + kCount);
    };
    std::vector<std::int32_t> gathered, exchanged, sums(3 * kCount);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const std::vector<std::int32_t> its = ints(rank, 3 * kCount), to_me = part_of(its, me), own = ints(rank, kCount);
      gathered.insert(gathered.end(), own.begin(), own.end());
      exchanged.insert(exchanged.end(), to_me.begin(), to_me.end());
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += its[i];
    }
    const Buffer own = arrays.of(ints(me, kCount), DType::kInt32),
                 whole = arrays.of(ints(me, 3 * kCount), DType::kInt32);
    const Buffer part = arrays.of(std::vector<std::int32_t>(kCount), DType::kInt32);
    const Buffer all = arrays.of(std::vector<std::int32_t>(3 * kCount), DType::kInt32);
    const auto expect = [&](const Status& status, const Buffer& found, const std::vector<std::int32_t>& expected) {
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(arrays.values_in<std::int32_t>(found), expected);
    };
    expect(comm.all_gather(own, all, in_stream), all, gathered);
    expect(comm.all_to_all(whole, all, in_stream), all, exchanged);
    expect(comm.reduce_scatter(whole, part, ReduceOp::kSum, in_stream), part, part_of(sums, me));
    const Status reduced = comm.reduce(own, part, ReduceOp::kMax, 1, in_stream);
    ASSERT_TRUE(reduced.ok()) << reduced.to_string();
    if (me == 1) expect(reduced, part, ints(2, kCount));
    const Status collected = comm.gather(own, all, 2, in_stream);
    ASSERT_TRUE(collected.ok()) << collected.to_string();
    if (me == 2) expect(collected, all, gathered);
    expect(comm.scatter(whole, part, 0, in_stream), part, part_of(ints(0, 3 * kCount), me));
    expect(comm.broadcast(own, 1, in_stream), own, ints(1, kCount));
  });
}

TEST_F(DeviceDirect, by_default_windows_are_used_directly_from_16_kib_on) {
  on_ranks(2, {.timeout = std::chrono::seconds(60), .select = "send_recv:0-inf=direct"},
           [](Communicator& comm, const OnDevice& on) {
             WindowArrays arrays(comm, on);
             const Buffer input = arrays.of(std::vector<float>(100000, 1.0F), DType::kFloat32);
             const Buffer output = arrays.of(std::vector<float>(100000), DType::kFloat32);
             for (int i = 0; i < 3; ++i)
               ASSERT_TRUE(comm.all_reduce(input, output, ReduceOp::kSum, {.stream = on.stream}).ok());
             ASSERT_TRUE(comm.all_reduce(input, ReduceOp::kSum, {.stream = on.stream}).ok());
             EXPECT_EQ(arrays.values_in<float>(output), std::vector<float>(100000, 2.0F));
             EXPECT_EQ(arrays.values_in<float>(input), std::vector<float>(100000, 2.0F));
             const DeviceArray ordinary(on, std::vector<float>(100000, 1.0F), DType::kFloat32);
             ASSERT_TRUE(comm.all_reduce(ordinary.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
             EXPECT_EQ(ordinary.values<float>(), std::vector<float>(100000, 2.0F));
           });
  EXPECT_EQ(calls_of("ncclAllReduce"), 1) << "of the ordinary buffer";
}

TEST_F(DeviceDirect, memory_of_the_program_is_read_directly_as_long_as_it_is_registered) {
  on_ranks(2, directly("two_shot_zero_copy,0-inf=nccl,0-inf=two_shot_zero_copy"),
           [](Communicator& comm, const OnDevice& on) {
             const DeviceArray values(on, std::vector<float>(20000, 1.0F), DType::kFloat32);
             {
               const DeviceWindow window = comm.device_window(values.part(3, 19000)).value();
               EXPECT_TRUE(window.is_direct());
               const Buffer inside = values.part(3, 19000);
               ASSERT_TRUE(comm.all_reduce(inside, ReduceOp::kSum, {.stream = on.stream}).ok());
               EXPECT_EQ(calls_of("ncclAllReduce"), 0);
               ASSERT_TRUE(comm.barrier().ok());
               // One element beyond the window.
               ASSERT_TRUE(comm.all_reduce(values.part(3, 19001), ReduceOp::kSum, {.stream = on.stream}).ok());
               on.synchronize();
               if (comm.rank() == 0) {
                 EXPECT_EQ(calls_of("ncclAllReduce"), 1);
               }
             }
             ASSERT_TRUE(comm.all_reduce(values.part(3, 19000), ReduceOp::kSum, {.stream = on.stream}).ok());
             EXPECT_EQ(values.values<float>()[3], 8.0F);
             EXPECT_EQ(values.values<float>()[19003], 2.0F);
             if (comm.rank() == 0) {
               EXPECT_EQ(calls_of("ncclAllReduce"), 2);
             }
           });
}

TEST_F(DeviceDirect, a_capture_holds_direct_calls_and_each_launch_runs_them) {
  for (const char* const algorithm : {"one_shot_zero_copy", "two_shot_zero_copy"}) {
    on_ranks(3, directly(algorithm), [](Communicator& comm, const OnDevice& on) {
      WindowArrays arrays(comm, on);
      const Buffer a = arrays.of(std::vector<float>(3000, 1.0F), DType::kFloat32);
      const Buffer b = arrays.of(std::vector<float>(3000), DType::kFloat32);
      const CallOptions in_stream{.stream = on.stream};
      const auto graph = runtime().capture(on.device, on.stream, [&] {  // also the first calls
        ACCORD_RETURN_IF_ERROR(comm.all_reduce(a, b, ReduceOp::kSum, in_stream));
        return comm.all_reduce(b, a, ReduceOp::kSum, in_stream);
      });
      ASSERT_TRUE(graph.ok()) << graph.status().to_string();
      EXPECT_EQ(arrays.values_in<float>(b), std::vector<float>(3000));
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(runtime().launch_graph(*graph, on.device, on.stream).ok());
      ASSERT_TRUE(comm.all_reduce(a, b, ReduceOp::kSum, in_stream).ok());
      EXPECT_EQ(arrays.values_in<float>(b), std::vector<float>(3000, 2187.0F));
      EXPECT_TRUE(runtime().destroy_graph(*graph).ok());
    });
  }
}

// No stream is waited for in between: a rank must not overwrite an input that a peer still reads.
TEST_F(DeviceDirect, consecutive_calls_on_the_same_buffers_each_give_their_own_result) {
  on_ranks(4, directly("one_shot_zero_copy,2k-inf=two_shot_zero_copy,0-16=packet"),
           [](Communicator& comm, const OnDevice& on) {
             WindowArrays arrays(comm, on);
             for (const std::size_t count : {1, 3, 300, 5000}) {
               const Buffer a = arrays.of(std::vector<std::int64_t>(count, comm.rank() + 1), DType::kInt64);
               const Buffer b = arrays.of(std::vector<std::int64_t>(count), DType::kInt64);
               std::int64_t expected = 10;
               for (int i = 0; i < 8; ++i, expected *= 16) {
                 ASSERT_TRUE(comm.all_reduce(a, b, ReduceOp::kSum, {.stream = on.stream}).ok());
                 ASSERT_TRUE(comm.all_reduce(b, a, ReduceOp::kSum, {.stream = on.stream}).ok());
               }
               EXPECT_EQ(arrays.values_in<std::int64_t>(b), std::vector<std::int64_t>(count, expected / 16)) << count;
             }
           });
}

TEST_F(DeviceDirect, buffers_in_windows_on_some_ranks_only_are_a_mismatch) {
  on_ranks(2, directly("two_shot_zero_copy"), [](Communicator& comm, const OnDevice& on) {
    WindowArrays arrays(comm, on);
    const DeviceArray ordinary(on, std::vector<float>(500, 1.0F), DType::kFloat32);
    const Buffer in_window = arrays.of(std::vector<float>(500, 1.0F), DType::kFloat32);
    const Buffer mine = comm.rank() == 0 ? in_window : ordinary.buffer();
    const Status status = comm.start(Call::all_reduce(mine, mine, ReduceOp::kSum), {.stream = on.stream}).wait();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(),
                HasSubstr("the buffers of rank 0 are in windows of the group, those of rank 1 are not"));
    on.synchronize();
  });
}

// Some of the calls end on all ranks before they are compared, with meaningless results.
TEST_F(DeviceDirect, a_call_that_only_some_ranks_make_in_place_is_a_mismatch) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "calls that differ write to the same places";
  for (int round = 0; round < 20; ++round) {
    on_ranks(2, directly("two_shot_zero_copy,0-inf=one_shot_zero_copy"), [](Communicator& comm, const OnDevice& on) {
      WindowArrays arrays(comm, on);
      const Buffer a = arrays.of(std::vector<float>(500, 1.0F), DType::kFloat32);
      const Buffer b = arrays.of(std::vector<float>(500, 1.0F), DType::kFloat32);
      const Status status =
          comm.start(Call::all_reduce(a, comm.rank() == 0 ? a : b, ReduceOp::kSum), {.stream = on.stream}).wait();
      EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("chose another algorithm"));
      on.synchronize();
    });
  }
}

TEST_F(DeviceDirect, a_window_that_a_rank_has_released_is_not_read) {
  on_ranks(2, directly("two_shot_zero_copy"), [](Communicator& comm, const OnDevice& on) {
    std::optional<DeviceWindow> first = comm.device_window(8192, on.device).value();
    const DeviceWindow second = comm.device_window(8192, on.device).value();
    const Buffer in_first = first->buffer(500, DType::kFloat32);
    const Buffer mine = comm.rank() == 0 ? in_first : second.buffer(500, DType::kFloat32);
    if (comm.rank() == 1) first.reset();
    ASSERT_TRUE(comm.barrier().ok());
    const CallOptions options = {.timeout = std::chrono::milliseconds(300), .stream = on.stream};
    const Status status = comm.start(Call::all_reduce(mine, mine, ReduceOp::kSum), options).wait();
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    on.synchronize();
  });
}

TEST_F(DeviceDirect, numbers_of_released_windows_are_used_again) {
  on_ranks(2, directly("two_shot_zero_copy"), [](Communicator& comm, const OnDevice& on) {
    std::vector<DeviceWindow> windows;
    for (int i = 0; i < 70; ++i) {
      Result<DeviceWindow> window = comm.device_window(4096, on.device);
      ASSERT_TRUE(window.ok()) << i << ": " << window.status().to_string();
      windows.push_back(*std::move(window));
      EXPECT_EQ(windows.back().is_direct(), i < 64) << i;
    }
    ASSERT_TRUE(comm.barrier().ok());
    // Each rank releases another one of two windows, and both a third.
    windows[static_cast<std::size_t>(comm.rank()) + 10] = windows[0];
    EXPECT_FALSE(comm.device_window(4096, on.device).value().is_direct());
    windows[20] = windows[0];
    const DeviceWindow again = comm.device_window(4096, on.device).value();
    EXPECT_TRUE(again.is_direct());
    const Buffer values = again.buffer(600, DType::kFloat32);
    const std::vector<float> ones(600, 1.0F);
    ASSERT_TRUE(runtime().copy(values.data, ones.data(), values.bytes(), on.device, on.stream).ok());
    ASSERT_TRUE(comm.all_reduce(values, ReduceOp::kSum, {.stream = on.stream}).ok());
    on.synchronize();
    EXPECT_EQ(*static_cast<float*>(values.data), 2.0F);
  });
}

TEST_F(DeviceDirect, where_plans_cannot_share_a_window_nccl_uses_it) {
  for (const char* const call : {"reach", "copy"}) {
    testing::clear_log();
    on_ranks(2, {.timeout = std::chrono::seconds(60), .select = "send_recv:0-inf=direct"},
             [&](Communicator& comm, const OnDevice& on) {
               const DeviceArray values(on, std::vector<float>(64, 1.0F), DType::kFloat32);
               ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
               on.synchronize();
               if (comm.rank() == 1) runtime().fail_next(call, Status(StatusCode::kUnsupported, "not this memory"));
               ASSERT_TRUE(comm.barrier().ok());
               const DeviceWindow window = comm.device_window(1 << 20, on.device).value();
               EXPECT_FALSE(window.is_direct());
               EXPECT_EQ(window.use(), WindowUse::kSymmetric);
               ASSERT_TRUE(
                   comm.all_reduce(window.buffer(100000, DType::kFloat32), ReduceOp::kSum, {.stream = on.stream}).ok());
               on.synchronize();
               EXPECT_TRUE(comm.device_window(4096, on.device).value().is_direct()) << "the next one";
             });
    EXPECT_EQ(calls_of("ncclAllReduce"), 1) << call;
  }
}

// No peer accesses it any more then. Memory that is released vanishes here.
TEST_F(DeviceDirect, memory_may_be_released_once_the_calls_of_its_rank_are_over) {
  for (const char* const algorithm : {"one_shot_zero_copy", "two_shot_zero_copy"}) {
    on_ranks(3, directly(algorithm), [](Communicator& comm, const OnDevice& on) {
      const DeviceArray input(on, std::vector<std::int32_t>(100000, 1), DType::kInt32);
      const DeviceArray output(on, std::vector<std::int32_t>(100000), DType::kInt32);
      const DeviceWindow first = comm.device_window(input.buffer()).value();
      const DeviceWindow second = comm.device_window(output.buffer()).value();
      for (int i = 0; i < 5; ++i)
        ASSERT_TRUE(comm.all_reduce(input.buffer(), output.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
      EXPECT_EQ(output.values<std::int32_t>(), std::vector<std::int32_t>(100000, 3));
    });
  }
}

TEST_F(DeviceDirect, a_missing_rank_is_named_and_the_streams_of_the_others_are_released) {
  on_ranks(3, directly("two_shot_zero_copy"), [](Communicator& comm, const OnDevice& on) {
    WindowArrays arrays(comm, on);
    const Buffer values = arrays.of(std::vector<float>(3000, 1.0F), DType::kFloat32);
    ASSERT_TRUE(comm.all_reduce(values, ReduceOp::kSum, {.stream = on.stream}).ok());
    on.synchronize();
    if (comm.rank() != 1) {
      const Status status = comm.start(Call::all_reduce(values, values, ReduceOp::kSum),
                                       {.timeout = std::chrono::milliseconds(200), .stream = on.stream})
                                .wait();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("rank 1 did not arrive in time"));
      on.synchronize();
    }
    while (comm.barrier({.timeout = std::chrono::seconds(30)}).ok()) {
    }
    EXPECT_THAT(comm.status().ranks(), ElementsAre(1));
  });
}

}  // namespace
}  // namespace accord
