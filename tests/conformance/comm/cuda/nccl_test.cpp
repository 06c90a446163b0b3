// The backend suite over NVIDIA's NCCL on a GPU, with 1, 2 and 4 ranks. Ranks take turns on the GPU, so several of them
// run few dtypes, or all in a suite of its own.
#include <gmock/gmock.h>

#include "conformance/comm/cuda/nccl_ranks.hpp"
#include "conformance/comm/device_suite.hpp"

namespace accord {
namespace {

using testing::OnDevice;

void check_all_reductions(Communicator& comm, const OnDevice& on) {
  // Plans serve the calls that NCCL does not support, except premul_sum of 8-bit floats in NCCL versions without
  // these and in groups of one.
  const bool scales_float8 = comm::nccl::library().value()->version >= 22400 && comm.size() > 1;
  EXPECT_EQ(testing::check_device_reductions(comm, on), 8 * 8 + 6 * 6 - (scales_float8 ? 0 : 2) + 2 * 3 + 7);
}

void check_few_reductions(Communicator& comm, const OnDevice& on) {
  EXPECT_EQ(testing::check_device_reductions_of_few_dtypes(comm, on), 8 + 2 * 6);
}

class CudaNccl : public testing::CudaNcclTest, public ::testing::WithParamInterface<int> {};

TEST_P(CudaNccl, calls_match_a_plain_computation) {
  const bool has_every_dtype = GetParam() == 1;
  on_ranks(GetParam(), all_of({{"reductions", has_every_dtype ? check_all_reductions : check_few_reductions},
                               {"data movement", has_every_dtype ? testing::check_device_data_movement
                                                                 : testing::check_device_data_movement_of_few_dtypes},
                               {"messages", testing::check_device_messages},
                               {"works", testing::check_device_works},
                               {"prepared calls", testing::check_device_prepared},
                               {"invalid calls", testing::check_invalid_device_calls}}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaNccl, ::testing::Values(1, 2, 4),
                         [](const auto& of) { return "of_" + std::to_string(of.param); });

/// Takes longer than all other suites of NCCL.
class CudaNcclOfEveryDType : public testing::CudaNcclTest {};

TEST_F(CudaNcclOfEveryDType, calls_match_a_plain_computation) {
  on_ranks(2, all_of({{"reductions", check_all_reductions}, {"data movement", testing::check_device_data_movement}}));
}

}  // namespace
}  // namespace accord
