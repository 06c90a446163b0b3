// NCCL behind the communicator, through a library that has NCCL's symbols.
#include <gmock/gmock.h>

#include <cstdlib>

#include "conformance/comm/device_suite.hpp"
#include "conformance/comm/host_devices.hpp"
#include "ranks/spawned_ranks.hpp"

namespace accord {
namespace {

using testing::OnDevice;

// Set before anything reads the environment. Processes of cuda/nccl_ranks.hpp use NVIDIA's library.
const bool kChosen = testing::is_spawned_rank() || setenv("ACCORD_NCCL", testing::library_path().c_str(), 1) == 0;

class Devices : public testing::HostDevices {};

TEST_F(Devices, reductions_match_a_plain_computation) {
  ASSERT_TRUE(kChosen);
  for (const int size : {1, 2, 3, 4}) {
    on_ranks(size, [](Communicator comm, const OnDevice& on) {
      // Plans serve the calls that NCCL does not support: 8 integer types with 8 ops, 6 float types with 6, 2 complex
      // types with 3, bool with 7.
      EXPECT_EQ(testing::check_device_reductions(comm, on), 8 * 8 + 6 * 6 - (comm.size() == 1 ? 2 : 0) + 2 * 3 + 7);
    });
  }
}

TEST_F(Devices, elements_of_every_dtype_reach_their_destination) {
  for (const int size : {1, 2, 4}) on_ranks(size, testing::check_device_data_movement);
}

TEST_F(Devices, messages) {
  for (const int size : {1, 2, 4}) on_ranks(size, testing::check_device_messages);
}

TEST_F(Devices, works_keep_stream_order) {
  for (const int size : {1, 2, 4}) on_ranks(size, testing::check_device_works);
}

TEST_F(Devices, prepared_calls) {
  for (const int size : {1, 3}) on_ranks(size, testing::check_device_prepared);
}

TEST_F(Devices, invalid_calls_of_one_rank_leave_the_group_usable) {
  for (const int size : {1, 2}) on_ranks(size, testing::check_invalid_device_calls);
}

}  // namespace
}  // namespace accord
