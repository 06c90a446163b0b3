// GPU memory and GPU communicators through the C interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/comm/host_devices.hpp"
#include "device/nccl_abi.hpp"
#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using ::testing::Contains;
using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::is_ok;
using ::testing::Not;
using testing::OnDevice;
namespace nccl = testing::nccl;

/// Read only once, when NCCL is first needed.
const bool kChosen = setenv("ACCORD_NCCL", testing::library_path().c_str(), 1) == 0;

class CDeviceWindows : public testing::HostDevices {
 protected:
  CDeviceWindows() { EXPECT_TRUE(kChosen); }
  static OnDevice on(int rank) { return {runtime(), {DeviceType::kCuda, static_cast<std::int16_t>(rank)}}; }
  /// Sums four floats at `memory` over the ranks.
  static accord_status_t sum(accord_communicator_t* communicator, int rank, void* memory) {
    accord_call_t call = testing::call_on(ACCORD_CALL_ALL_REDUCE, ACCORD_FLOAT32, memory);
    call.input_count = call.output_count = 4;
    accord_call_options_t options = ACCORD_CALL_OPTIONS_INIT;
    options.device = ACCORD_CUDA;
    options.device_index = rank;
    return accord_run(communicator, &call, &options);
  }
};

TEST_F(CDeviceWindows, a_window_allocates_or_registers_memory_and_reports_its_use) {
  testing::run_c_ranks(2, [](accord_communicator_t* communicator, int rank) {
    const DeviceArray own(on(rank), std::vector<float>(1024, 1.0F), DType::kFloat32);
    for (void* const given : {static_cast<void*>(nullptr), own.buffer().data}) {
      accord_device_window_t* window = nullptr;
      ASSERT_TRUE(is_ok(accord_device_window_create(communicator, given, 4096, ACCORD_CUDA, rank, 0, &window)));
      void* memory = nullptr;
      size_t bytes = 0;
      accord_window_use_t use = -1;
      ASSERT_TRUE(is_ok(accord_device_window_memory(window, &memory, &bytes, &use)));
      EXPECT_EQ(bytes, 4096U);
      EXPECT_EQ(memory == given, given != nullptr);
      EXPECT_TRUE(use == ACCORD_WINDOW_SYMMETRIC || (given != nullptr && use == ACCORD_WINDOW_REGISTERED)) << use;
      const std::vector<float> ones(4, 1.0F);
      ASSERT_TRUE(runtime().copy(memory, ones.data(), 16, on(rank).device, {}).ok());
      ASSERT_TRUE(is_ok(sum(communicator, rank, memory)));
      std::vector<float> found(4);
      ASSERT_TRUE(runtime().copy(found.data(), memory, 16, on(rank).device, {}).ok());
      on(rank).synchronize();
      EXPECT_EQ(found, std::vector<float>(4, 2.0F));
      int32_t is_direct = -1;
      ASSERT_TRUE(is_ok(accord_device_window_is_direct(window, &is_direct)));
      EXPECT_EQ(is_direct, 1);
      accord_device_window_free(window);
    }
  });
}

TEST_F(CDeviceWindows, invalid_arguments_are_rejected_by_name) {
  testing::run_c_ranks(1, [](accord_communicator_t* communicator, int) {
    accord_device_window_t* window = nullptr;
    EXPECT_EQ(accord_device_window_create(communicator, nullptr, 64, 9, 0, 0, &window), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("accord_device_window_create: device 9"));
    EXPECT_EQ(accord_device_window_create(communicator, nullptr, 64, ACCORD_CUDA, -1, 0, &window),
              ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("device_index is -1"));
    EXPECT_EQ(accord_device_window_create(communicator, nullptr, 64, ACCORD_CUDA, 0, 0, nullptr),
              ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("window is null"));
    EXPECT_EQ(accord_device_window_memory(nullptr, nullptr, nullptr, nullptr), ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(accord_communicator_lend_nccl(communicator, nullptr), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("nccl_communicator is null"));
    EXPECT_EQ(window, nullptr);
    accord_device_window_free(nullptr);
  });
}

TEST_F(CDeviceWindows, a_borrowed_communicator_makes_the_calls) {
  nccl::ncclUniqueId id;
  ASSERT_EQ(nccl::ncclGetUniqueId(&id), nccl::ncclSuccess);
  testing::run_store_ranks(2, [&](accord_store_t* store, int rank) {
    testing::HostRuntime::set_current_device(rank);
    nccl::ncclComm_t own = nullptr;
    ASSERT_EQ(nccl::ncclCommInitRank(&own, 2, id, rank), nccl::ncclSuccess);
    accord_communicator_options_t options = ACCORD_COMMUNICATOR_OPTIONS_INIT;
    options.select = testing::kByNccl;
    accord_communicator_t* communicator = nullptr;
    ASSERT_TRUE(is_ok(accord_communicator_create(store, rank, 2, &options, &communicator)));
    ASSERT_TRUE(is_ok(accord_communicator_lend_nccl(communicator, own)));
    {
      const DeviceArray values(on(rank), std::vector<float>(4, 1.0F), DType::kFloat32);
      ASSERT_TRUE(is_ok(sum(communicator, rank, values.buffer().data)));
      EXPECT_EQ(values.values<float>(), std::vector<float>(4, 2.0F));
    }
    EXPECT_EQ(accord_communicator_lend_nccl(communicator, own), ACCORD_WRONG_STATE);
    accord_communicator_free(communicator);
    EXPECT_EQ(nccl::ncclCommDestroy(own), nccl::ncclSuccess);
  });
  EXPECT_THAT(testing::log_of(0), Not(Contains(HasSubstr("ncclCommInitRankConfig"))));
}

}  // namespace
}  // namespace accord
