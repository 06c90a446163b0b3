// The backend suite over NVIDIA's NCCL on a GPU, with 1, 2 and 4 ranks. With 4 ranks, which take turns on the GPU,
// only a few dtypes run.
#include <gmock/gmock.h>

#include "conformance/comm/cuda/nccl_ranks.hpp"
#include "conformance/comm/device_suite.hpp"

namespace accord {
namespace {

using testing::OnDevice;

class CudaNccl : public testing::CudaNcclTest, public ::testing::WithParamInterface<int> {
 protected:
  void run(const std::function<void(Communicator&, const OnDevice&)>& check) {
    if (IsSkipped()) return;
    on_ranks(GetParam(), check);
  }
};

TEST_P(CudaNccl, reductions_match_a_plain_computation) {
  run([](Communicator& comm, const OnDevice& on) {
    if (comm.size() == 4) {
      EXPECT_EQ(testing::check_device_reductions_of_few_dtypes(comm, on), 7 + 8 + 2 * 6);
      return;
    }
    // Plans serve the calls that NCCL does not support, except premul_sum of 8-bit floats in NCCL versions without
    // these and in groups of one.
    const bool scales_float8 = comm::nccl::library().value()->version >= 22400 && comm.size() > 1;
    EXPECT_EQ(testing::check_device_reductions(comm, on), 8 * 8 + 6 * 6 - (scales_float8 ? 0 : 2) + 2 * 3 + 7);
  });
}

TEST_P(CudaNccl, elements_of_every_dtype_reach_their_destination) {
  run(GetParam() == 4 ? testing::check_device_data_movement_of_few_dtypes : testing::check_device_data_movement);
}
TEST_P(CudaNccl, messages) { run(testing::check_device_messages); }
TEST_P(CudaNccl, works_keep_stream_order) { run(testing::check_device_works); }
TEST_P(CudaNccl, prepared_calls) { run(testing::check_device_prepared); }
TEST_P(CudaNccl, invalid_calls_of_one_rank_leave_the_group_usable) { run(testing::check_invalid_device_calls); }

INSTANTIATE_TEST_SUITE_P(Ranks, CudaNccl, ::testing::Values(1, 2, 4),
                         [](const auto& of) { return "of_" + std::to_string(of.param); });

}  // namespace
}  // namespace accord
