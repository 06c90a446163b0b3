// Expert parallelism on devices through the C interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/comm/host_devices.hpp"
#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using testing::is_ok;
using testing::OnDevice;

class CExpertDevices : public testing::HostDevices {};

TEST_F(CExpertDevices, a_step_runs_in_the_stream_of_its_calls) {
  testing::run_c_ranks(2, [](accord_communicator_t* communicator, int rank) {
    const Device device{DeviceType::kCuda, static_cast<std::int16_t>(rank)};
    const OnDevice on{runtime(), device, runtime().create_stream(device, false).value()};
    accord_expert_config_t config = ACCORD_EXPERT_CONFIG_INIT;
    config.experts = 4;
    config.top_k = 2;
    config.hidden = 4;
    config.max_tokens_per_rank = 1;
    config.dtype = ACCORD_FLOAT32;
    config.device = ACCORD_CUDA;
    config.device_index = -1;
    accord_expert_group_t* group = nullptr;
    EXPECT_EQ(accord_expert_group_create(communicator, &config, &group), ACCORD_INVALID_ARGUMENT);
    config.device_index = rank;
    ASSERT_TRUE(is_ok(accord_expert_group_create(communicator, &config, &group)));
    accord_expert_handle_t* handle = nullptr;
    ASSERT_TRUE(is_ok(accord_expert_handle_create(group, nullptr, &handle)));
    {
      const DeviceArray ids(on, std::vector<std::int64_t>{0, 3}, DType::kInt64),
          tokens(on, std::vector<float>(4, 1.0F + static_cast<float>(rank)), DType::kFloat32),
          slots(on, std::vector<float>(16), DType::kFloat32);
      accord_expert_routing_t routing = ACCORD_EXPERT_ROUTING_INIT;
      routing.ids = ids.buffer().data;
      routing.tokens = 1;
      routing.stream = on.stream.handle;
      accord_expert_rows_t rows = ACCORD_EXPERT_ROWS_INIT;
      rows.tokens = tokens.buffer().data;
      rows.slots = slots.buffer().data;
      rows.recv_capacity = 4;
      rows.dtype = ACCORD_FLOAT32;
      rows.stream = on.stream.handle;
      {
        const testing::BusyStream busy = runtime().make_stream_busy(on.stream);
        ASSERT_TRUE(is_ok(accord_expert_prepare(group, handle, &routing)));
        ASSERT_TRUE(is_ok(accord_expert_dispatch(group, handle, &rows)));
        ASSERT_TRUE(is_ok(accord_expert_combine(group, handle, &rows)));
      }
      EXPECT_EQ(tokens.values<float>(), std::vector<float>(4, 2.0F + 2.0F * static_cast<float>(rank)));
      accord_expert_device_map_t there = ACCORD_EXPERT_DEVICE_MAP_INIT;
      ASSERT_TRUE(is_ok(accord_expert_handle_on_device(handle, &there)));
      std::int64_t recv_rows = 0;
      ASSERT_TRUE(on.runtime.copy(&recv_rows, there.numbers, sizeof recv_rows, device, on.stream).ok());
      ASSERT_TRUE(is_ok(accord_expert_handle_fetch(handle, on.stream.handle)));
      EXPECT_EQ(recv_rows, 2);
      accord_expert_map_t map = ACCORD_EXPERT_MAP_INIT;
      ASSERT_TRUE(is_ok(accord_expert_handle_map(handle, &map)));
      EXPECT_EQ(map.recv_rows, 2);
    }
    accord_expert_group_free(group);
    accord_expert_handle_free(handle);
    EXPECT_TRUE(runtime().destroy_stream(device, on.stream).ok());
  });
}

}  // namespace
}  // namespace accord
