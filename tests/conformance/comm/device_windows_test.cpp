// Memory of devices that is registered with all ranks.
#include <gmock/gmock.h>

#include <optional>
#include <thread>
#include <vector>

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

/// A window over memory of the program.
Result<DeviceWindow> window_over(Communicator& comm, const OnDevice& on, void* memory, std::size_t bytes) {
  return comm.device_window(Buffer{memory, bytes, DType::kUInt8, on.device});
}

/// Memory in allocations of these sizes that are mapped side by side, as an allocator with expandable segments makes
/// it.
class Mapped {
 public:
  Mapped(const OnDevice& on, std::vector<std::size_t> sizes)
      : on_(on),
        data_(static_cast<std::byte*>(
            testing::HostRuntime::instance().allocate_mapped(on.device, std::move(sizes)).value())) {}
  ~Mapped() { EXPECT_TRUE(on_.runtime.release(on_.device, data_).ok()); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  std::byte* at(std::size_t offset) const { return data_ + offset; }

 private:
  const OnDevice& on_;
  std::byte* const data_;
};

constexpr std::size_t kGranularity = testing::HostRuntime::kMapGranularity;

TEST_F(DeviceWindows, memory_that_was_not_mapped_is_registered_and_leaves_the_group_usable) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    void* const plain = runtime().allocate(on.device, kGranularity, kGranularity).value();  // as cudaMalloc
    {
      Result<DeviceWindow> window = window_over(comm, on, plain, kGranularity);
      ASSERT_TRUE(window.ok()) << window.status().to_string();
      EXPECT_EQ(window->use(), WindowUse::kRegistered);
      use(comm, on, *window);
    }
    EXPECT_TRUE(runtime().release(on.device, plain).ok());
    const Mapped mapped(on, {kGranularity});
    Result<DeviceWindow> window = window_over(comm, on, mapped.at(0), kGranularity);
    ASSERT_TRUE(window.ok()) << window.status().to_string();
    EXPECT_EQ(window->use(), WindowUse::kSymmetric);
    use(comm, on, *window);
  });
  EXPECT_THAT(testing::log_of(0), Contains(HasSubstr("ncclCommRegister rank=0 bytes=65536")));
}

TEST_F(DeviceWindows, nccl_needs_an_aligned_beginning_and_before_2_30_a_single_allocation) {
  const auto use_at = [](Communicator& comm, const OnDevice& on, std::size_t offset, std::size_t bytes) {
    const Mapped mapped(on, {kGranularity, 2 * kGranularity});
    Result<DeviceWindow> window = window_over(comm, on, mapped.at(offset), bytes);
    EXPECT_TRUE(window.ok()) << window.status().to_string();
    if (!window.ok()) return WindowUse::kPlain;
    use(comm, on, *window);
    return window->use();
  };
  for (const int version : {22900, 23000}) {
    SCOPED_TRACE(version);
    const testing::OtherNccl other(version);
    on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
      const auto uses = [&](std::size_t offset, std::size_t bytes) { return use_at(comm, on, offset, bytes); };
      EXPECT_EQ(uses(0, kGranularity), WindowUse::kSymmetric);
      EXPECT_EQ(uses(kGranularity, 2 * kGranularity), WindowUse::kSymmetric);
      EXPECT_EQ(uses(kGranularity + 4096, 2 * kGranularity - 4096), WindowUse::kSymmetric);  // up to the end
      EXPECT_EQ(uses(kGranularity - 4096, 4096), WindowUse::kSymmetric);
      EXPECT_EQ(uses(kGranularity + 512, kGranularity), WindowUse::kRegistered);
      const WindowUse expected = version < 23000 ? WindowUse::kRegistered : WindowUse::kSymmetric;
      EXPECT_EQ(uses(0, kGranularity + 1), expected);
      EXPECT_EQ(uses(0, 3 * kGranularity), expected);
      EXPECT_EQ(uses(kGranularity - 4096, 4097), expected);
    });
  }
}

TEST_F(DeviceWindows, a_window_is_symmetric_only_if_the_memory_of_all_ranks_lies_alike) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const bool is_first = comm.rank() == 0;
    const Mapped mapped(on, {2 * kGranularity}), larger(on, {4 * kGranularity});
    void* const plain = runtime().allocate(on.device, 2 * kGranularity, kGranularity).value();
    void* const candidates[3] = {is_first ? mapped.at(0) : plain, mapped.at(is_first ? 0 : 4096),
                                 is_first ? mapped.at(0) : larger.at(0)};
    for (void* const memory : candidates) {
      Result<DeviceWindow> window = window_over(comm, on, memory, kGranularity);
      ASSERT_TRUE(window.ok()) << window.status().to_string();
      EXPECT_EQ(window->use(), WindowUse::kRegistered);
      use(comm, on, *window);
    }
    EXPECT_EQ(window_over(comm, on, mapped.at(4096), kGranularity).value().use(), WindowUse::kSymmetric);
    EXPECT_TRUE(runtime().release(on.device, plain).ok());
  });
}

TEST_F(DeviceWindows, memory_can_be_registered_twice) {
  for (const int version : {22700, 22900}) {
    SCOPED_TRACE(version);
    const testing::OtherNccl other(version);
    on_ranks(2, [version](Communicator& comm, const OnDevice& on) {
      const Mapped mapped(on, {kGranularity}), another(on, {kGranularity});
      for (const bool in_order : {true, false}) {
        std::optional<DeviceWindow> first = window_over(comm, on, mapped.at(0), kGranularity).value();
        std::optional<DeviceWindow> second = window_over(comm, on, mapped.at(4096), 4096).value();
        EXPECT_EQ(first->use(), WindowUse::kSymmetric);
        // NCCL 2.27 would unmap the memory with the first of them.
        EXPECT_EQ(second->use(), version < 22800 ? WindowUse::kRegistered : WindowUse::kSymmetric);
        use(comm, on, *second);
        (in_order ? first : second).reset();
        use(comm, on, in_order ? *second : *first);
      }
      // One rank registers the same memory again, for which NCCL does nothing; the other has new memory.
      const DeviceWindow first = window_over(comm, on, mapped.at(0), kGranularity).value();
      const Mapped& its = comm.rank() == 0 ? mapped : another;
      const DeviceWindow second = window_over(comm, on, its.at(0), kGranularity).value();
      EXPECT_EQ(second.use(), WindowUse::kRegistered);
      use(comm, on, second);
    });
  }
}

TEST_F(DeviceWindows, windows_that_only_some_ranks_have_released_keep_later_ones_from_being_symmetric) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    std::optional<DeviceWindow> first = comm.device_window(4096, on.device).value();
    if (comm.rank() == 0) first.reset();
    const DeviceWindow second = comm.device_window(4096, on.device).value();
    EXPECT_EQ(second.use(), WindowUse::kRegistered);
    use(comm, on, second);
    first.reset();
    EXPECT_EQ(comm.device_window(4096, on.device).value().use(), WindowUse::kSymmetric);
  });
}

TEST_F(DeviceWindows, a_thread_releases_a_window_while_another_registers_memory) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    void* const plain = runtime().allocate(on.device, kGranularity, kGranularity).value();
    std::optional<DeviceWindow> earlier = window_over(comm, on, plain, kGranularity).value();
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) testing::hang_next("ncclCommRegister", 0);
    std::thread releasing([&] {
      while (comm.rank() == 0 && testing::blocked_threads() == 0) std::this_thread::yield();
      earlier.reset();
    });
    use(comm, on, window_over(comm, on, plain, kGranularity).value());
    releasing.join();
    EXPECT_TRUE(runtime().release(on.device, plain).ok());
  });
}

TEST_F(DeviceWindows, all_ranks_report_a_rank_whose_driver_fails) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    use(comm, on, comm.device_window(4096, on.device).value());  // connects
    if (comm.rank() == 0) runtime().fail_next("mapped_memory", Status(StatusCode::kInternal, "the driver is gone"));
    ASSERT_TRUE(comm.barrier().ok());
    const Status status = comm.device_window(4096, on.device).status();
    EXPECT_THAT(status.message(), HasSubstr("the driver is gone"));
    EXPECT_EQ(comm.state(), CommunicatorState::kReady);
    use(comm, on, comm.device_window(4096, on.device).value());
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
