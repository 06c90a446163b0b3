// Memory of devices that is registered with all ranks.
#include <gmock/gmock.h>

#include "accord/nccl.hpp"
#include "conformance/comm/host_devices.hpp"
#include "conformance/comm/other_nccl.hpp"

namespace accord {
namespace {

using ::testing::Contains;
using testing::DeviceArray;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::OnDevice;
namespace nccl = testing::nccl;

class DeviceWindows : public testing::HostDevices {
 protected:
  /// Sums ones in the window over all ranks.
  static void use(Communicator& comm, const OnDevice& on, const DeviceWindow& window) {
    const std::vector<float> ones(64, 1.0F);
    const Buffer part = window.buffer(64, DType::kFloat32, 128);
    const CallOptions options{.stream = on.stream};
    ASSERT_TRUE(runtime().copy(part.data, ones.data(), part.bytes(), on.device, on.stream).ok());
    ASSERT_TRUE(comm.all_reduce(part, ReduceOp::kSum, options).ok());
    std::vector<float> got(64);
    ASSERT_TRUE(runtime().copy(got.data(), part.data, part.bytes(), on.device, on.stream).ok());
    on.synchronize();
    EXPECT_EQ(got, std::vector<float>(64, static_cast<float>(comm.size())));
  }
};

TEST_F(DeviceWindows, a_window_is_symmetric_where_nccl_supports_it) {
  for (const int size : {1, 2, 4}) {
    on_ranks(size, [](Communicator& comm, const OnDevice& on) {
      Result<DeviceWindow> window = comm.device_window(8192, on.device);
      ASSERT_TRUE(window.ok()) << window.status().to_string();
      EXPECT_EQ(window->use(), WindowUse::kSymmetric);
      EXPECT_EQ(window->bytes(), 8192U);
      EXPECT_EQ(window->device(), on.device);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window->data()) % 4096, 0U);
      use(comm, on, *window);
    });
  }
  EXPECT_THAT(testing::log_of(0), Contains(HasSubstr("ncclCommWindowRegister rank=0 bytes=8192 flags=1")));
  EXPECT_THAT(testing::log_of(0), Contains(HasSubstr("ncclCommWindowDeregister")));
}

TEST_F(DeviceWindows, older_libraries_register_memory_as_far_as_they_support_it) {
  for (const auto& [version, expected] : {std::pair{22600, WindowUse::kRegistered}, {21800, WindowUse::kPlain}}) {
    const testing::OtherNccl other(version);
    on_ranks(2, [use_of = expected](Communicator& comm, const OnDevice& on) {
      Result<DeviceWindow> window = comm.device_window(8192, on.device);
      ASSERT_TRUE(window.ok()) << window.status().to_string();
      EXPECT_EQ(window->use(), use_of);
      use(comm, on, *window);
    });
  }
  EXPECT_THAT(testing::log_of(0), Not(Contains(HasSubstr("Window"))));
  EXPECT_THAT(testing::log_of(0), Contains(HasSubstr("ncclCommRegister rank=0 bytes=8192")));
}

TEST_F(DeviceWindows, a_machine_without_windows_has_registered_memory) {
  testing::set_windows(false);
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    Result<DeviceWindow> window = comm.device_window(8192, on.device);
    ASSERT_TRUE(window.ok()) << window.status().to_string();
    EXPECT_EQ(window->use(), WindowUse::kRegistered);
    use(comm, on, *window);
  });
}

TEST_F(DeviceWindows, user_memory_is_registered_and_remains_with_the_program) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    // Aligned to less than a page on some rank.
    const DeviceArray values(on, std::vector<float>(1024), DType::kFloat32);
    {
      Result<DeviceWindow> window = comm.device_window(values.part(1, 1000));
      ASSERT_TRUE(window.ok()) << window.status().to_string();
      EXPECT_EQ(window->use(), WindowUse::kRegistered);
      EXPECT_EQ(window->data(), values.part(1, 1000).data);
      use(comm, on, *window);
    }
    EXPECT_EQ(values.values<float>().size(), 1024U);
  });
}

TEST_F(DeviceWindows, a_borrowed_communicator_registers_memory_too) {
  nccl::ncclUniqueId id;
  ASSERT_EQ(nccl::ncclGetUniqueId(&id), nccl::ncclSuccess);
  on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
    testing::HostRuntime::set_current_device(on.device.index);
    nccl::ncclComm_t own = nullptr;
    ASSERT_EQ(nccl::ncclCommInitRank(&own, 2, id, comm.rank()), nccl::ncclSuccess);
    ASSERT_TRUE(lend_nccl(comm, own).ok());
    {
      Result<DeviceWindow> window = comm.device_window(4096, on.device);
      ASSERT_TRUE(window.ok()) << window.status().to_string();
      EXPECT_EQ(window->use(), WindowUse::kSymmetric);
      use(comm, on, *window);
    }
    comm.close();
    EXPECT_EQ(nccl::ncclCommDestroy(own), nccl::ncclSuccess);
  });
}

TEST_F(DeviceWindows, a_window_may_outlive_its_communicator_and_its_group) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    for (const bool closes : {false, true}) {
      std::optional<DeviceWindow> kept;
      {
        Communicator part = **comm.split(0, 0, {.name = closes ? "closed" : "open"});
        kept = part.device_window(4096, on.device).value();
        use(part, on, *kept);
        if (closes) part.close();
      }
      EXPECT_TRUE(runtime().fill(kept->data(), 0, kept->bytes(), on.device, on.stream).ok());
      on.synchronize();
    }
  });
}

TEST_F(DeviceWindows, different_sizes_are_reported) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const Status status = comm.device_window(comm.rank() == 0 ? 4096 : 8192, on.device).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("8192 bytes"));
    EXPECT_THAT(status.message(), HasSubstr("4096 bytes"));
    EXPECT_EQ(comm.device_window(0, on.device).status().code(), StatusCode::kInvalidArgument);
    const DeviceWindow window = comm.device_window(4096, on.device).value();  // the group still works
    use(comm, on, window);
  });
}

TEST_F(DeviceWindows, all_ranks_report_a_rank_without_memory_and_the_group_stays_usable) {
  for (const char* const function : {"ncclMemAlloc", "ncclCommRegister"}) {
    SCOPED_TRACE(function);
    testing::set_windows(false);
    on_ranks(2, [function](Communicator& comm, const OnDevice& on) {
      if (comm.rank() == 0) testing::fail_next(function, nccl::ncclUnhandledCudaError);
      ASSERT_TRUE(comm.barrier().ok());
      const Status status = comm.device_window(4096, on.device).status();
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status.message(), HasSubstr(function));
      EXPECT_EQ(comm.state(), CommunicatorState::kReady);
      use(comm, on, comm.device_window(4096, on.device).value());
    });
    testing::reset_nccl();
  }
}

TEST_F(DeviceWindows, a_window_that_nccl_rejects_or_never_completes_fails_the_group) {
  for (const bool hangs : {false, true}) {
    on_ranks(2, {.timeout = std::chrono::milliseconds(500)}, [hangs](Communicator& comm, const OnDevice& on) {
      if (comm.rank() == 1 && hangs) testing::hang_next("ncclCommWindowRegister", 1);
      if (comm.rank() == 1 && !hangs) testing::fail_next("ncclCommWindowRegister", nccl::ncclSystemError, 1);
      ASSERT_TRUE(comm.barrier().ok());
      const Status status = comm.device_window(4096, on.device).status();
      EXPECT_EQ(status.code(), hangs ? StatusCode::kTimeout : StatusCode::kInternal) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("ncclCommWindowRegister"));
      EXPECT_EQ(comm.state(), CommunicatorState::kFailed);
    });
    testing::reset_nccl();
  }
}

}  // namespace
}  // namespace accord
