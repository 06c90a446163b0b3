// Plans that read and write the buffers of other processes in windows.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <random>
#include <thread>

#include "accord/device_window.hpp"
#include "device/nccl_control.hpp"
#include "multiproc/comm/device_processes.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using testing::kNamedTheDead;
using testing::OnDevice;

/// The ranks have no NCCL that accord can use, so windows are for plans only.
class DeviceDirectProcesses : public testing::DeviceProcesses {
 protected:
  static CommunicatorOptions directly(const std::string& algorithm) {
    CommunicatorOptions options = by_plans();
    options.select += ";all_reduce[memory=cuda]:0-inf=" + algorithm;
    return options;
  }
  /// For a rank's process: its NCCL is too old from here on.
  static void lack_nccl() { testing::set_version(21700); }
  static std::vector<float> some(int rank, std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::vector<float> values(count);
    for (float& value : values) value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 30) - 40);
    return values;
  }
  static void put(const OnDevice& on, const Buffer& to, const std::vector<float>& values) {
    EXPECT_TRUE(on.runtime.copy(to.data, values.data(), to.bytes(), on.device, on.stream).ok());
    on.synchronize();
  }
  static std::vector<float> values_in(const OnDevice& on, const Buffer& buffer) {
    std::vector<float> values(buffer.count);
    on.synchronize();
    EXPECT_TRUE(on.runtime.copy(values.data(), buffer.data, buffer.bytes(), on.device, on.stream).ok());
    on.synchronize();
    return values;
  }
  /// Sums in the window, from one place of it to another.
  static void check_sums(Communicator& comm, const OnDevice& on, const DeviceWindow& window) {
    for (const std::size_t count : {std::size_t{7}, std::size_t{20001}}) {
      const std::vector<float> mine = some(comm.rank(), count);
      std::vector<float> expected = mine;
      EXPECT_TRUE(comm.all_reduce(Buffer{expected.data(), count, DType::kFloat32}, ReduceOp::kSum).ok());
      const std::size_t offset = 64 * static_cast<std::size_t>(comm.rank());
      const Buffer input = window.buffer(count, DType::kFloat32, offset);
      const Buffer output = window.buffer(count, DType::kFloat32, offset + 81920);
      put(on, input, mine);
      const Status status = comm.all_reduce(input, output, ReduceOp::kSum, {.stream = on.stream});
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(values_in(on, output), expected) << count;
      EXPECT_TRUE(comm.all_reduce(input, ReduceOp::kSum, {.stream = on.stream}).ok());
      EXPECT_EQ(values_in(on, input), expected) << count << " in place";
    }
  }
};

constexpr std::size_t kWindowBytes = 192 << 10;

TEST_F(DeviceDirectProcesses, windows_are_read_by_handles_of_any_kind_of_memory) {
  for (const int size : {2, 3, 4}) {
    on_ranks(size, directly("two_shot_zero_copy,0-inf=one_shot_zero_copy"), [](Communicator& comm, const OnDevice& on) {
      lack_nccl();
      {
        const Result<DeviceWindow> own = comm.device_window(kWindowBytes, on.device);
        ASSERT_TRUE(own.ok()) << own.status().to_string();
        EXPECT_TRUE(own->is_direct());
        EXPECT_EQ(own->use(), WindowUse::kPlain);
        check_sums(comm, on, *own);
      }
      const DeviceArray array(on, std::vector<float>(60000), DType::kFloat32);
      check_sums(comm, on, comm.device_window(array.part(64, 50000)).value());
      void* const virtual_memory = runtime().allocate_mapped(on.device, {2 * kWindowBytes}).value();
      {
        const Buffer part{static_cast<std::byte*>(virtual_memory) + 4096, kWindowBytes, DType::kUInt8, on.device};
        const Result<DeviceWindow> window = comm.device_window(part);
        ASSERT_TRUE(window.ok()) << window.status().to_string();
        check_sums(comm, on, *window);
      }
      ASSERT_TRUE(comm.barrier().ok());
      EXPECT_TRUE(runtime().release(on.device, virtual_memory).ok());
    });
  }
}

TEST_F(DeviceDirectProcesses, without_nccl_a_window_that_cannot_be_shared_is_refused) {
  on_ranks(2, directly("two_shot_zero_copy"), [](Communicator& comm, const OnDevice& on) {
    lack_nccl();
    const DeviceArray small(on, std::vector<float>(100), DType::kFloat32);
    const Status status = comm.device_window(small.buffer()).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
    EXPECT_THAT(status.message(), ::testing::HasSubstr("only allocations of 65536 bytes and more can be shared"));
    EXPECT_EQ(comm.device_window(comm.rank() == 0 ? 8192 : 4096, on.device).status().code(), StatusCode::kMismatch);
    EXPECT_TRUE(comm.device_window(8192, on.device).ok()) << "the group stays usable";
  });
}

TEST_F(DeviceDirectProcesses, a_message_to_or_from_a_rank_without_nccl_fails_on_both_ranks) {
  for (const int lacking : {0, 1})
    on_ranks(2, by_plans(), [&](Communicator& comm, const OnDevice& on) {
      if (comm.rank() == lacking) lack_nccl();
      const DeviceArray values(on, std::vector<float>(100), DType::kFloat32);
      const Call call = comm.rank() == 0 ? Call::send(values.buffer(), 1) : Call::recv(values.buffer(), 0);
      const Status status = comm.run(call, {.stream = on.stream});
      EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
      EXPECT_THAT(status.message(), ::testing::HasSubstr("is NCCL 2.17.0, older than"));
    });
}

TEST_F(DeviceDirectProcesses, a_forked_child_does_not_close_its_parents_channel) {
  on_ranks(2, directly("two_shot_zero_copy"), [&](Communicator& comm, const OnDevice& on) {
    lack_nccl();
    std::optional<DeviceWindow> window = comm.device_window(kWindowBytes, on.device).value();
    check_sums(comm, on, *window);
    EXPECT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until no thread of accord's has the group
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(20);
        window.reset();
        { const Communicator last = std::move(comm); }
        ::_exit(0);
      }
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    EXPECT_TRUE(comm.barrier().ok());
    const Buffer sum = window->buffer(100, DType::kFloat32);
    // Rank 1 calls first, before a rank that seems to have left if the child has closed its channel.
    while (comm.rank() == 0 && board_->ready == 0) std::this_thread::yield();
    EXPECT_TRUE(comm.all_reduce(sum, ReduceOp::kSum, {.stream = on.stream}).ok());
    board_->ready = 1;
    on.synchronize();
    check_sums(comm, on, *window);
  });
}

TEST_F(DeviceDirectProcesses, a_rank_killed_while_others_access_its_buffers_is_named) {
  for (const char* const algorithm : {"one_shot_zero_copy", "two_shot_zero_copy"}) {
    const std::vector<int> exits = exits_of(4, directly(algorithm), 2, [&](Communicator& comm, const OnDevice& on) {
      lack_nccl();
      const DeviceWindow window = comm.device_window(kWindowBytes, on.device).value();
      const Buffer input = window.buffer(20000, DType::kFloat32), output = window.buffer(20000, DType::kFloat32, 81920);
      put(on, input, std::vector<float>(20000, 1.0F));
      EXPECT_TRUE(comm.all_reduce(input, output, ReduceOp::kSum, {.stream = on.stream}).ok());
      EXPECT_EQ(values_in(on, output), std::vector<float>(20000, 4.0F));
      for (int i = 0;; ++i) {
        const Status put = comm.all_reduce(input, output, ReduceOp::kSum, {.stream = on.stream});
        on.synchronize();
        if (i == 5) ++board_->ready;
        if (!put.ok()) return judge(put, 2, on);
      }
    });
    EXPECT_EQ(exits, (std::vector<int>{kNamedTheDead, kNamedTheDead, 128 + SIGKILL, kNamedTheDead})) << algorithm;
  }
}

}  // namespace
}  // namespace accord
