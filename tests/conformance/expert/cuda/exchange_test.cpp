// Expert groups whose ranks are processes that share a GPU: every call is bit-identical to the same call on CPU
// ranks.
#include "conformance/comm/cuda/nccl_ranks.hpp"
#include "conformance/expert/device_exchange.hpp"
#include "conformance/expert/device_overflow.hpp"

namespace accord {
namespace {

using testing::ExpertProblem;
using testing::OnDevice;

/// The parameter is the number of ranks.
class CudaExperts : public testing::CudaNcclTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    CudaNcclTest::SetUp();
    if (GetParam() > 1) skip_unless_memory_opens();
  }
  static void expect_bit_identical_to_the_cpu(std::vector<ExpertProblem> problems) {
    if (IsSkipped()) return;
    const auto body = [&](Communicator& comm, const OnDevice& on) {
      unsigned seed = 0;
      for (ExpertProblem& problem : problems) {
        problem.tokens.resize(static_cast<std::size_t>(comm.size()));
        SCOPED_TRACE(std::string(to_string(problem.dtype)) + ", problem " + std::to_string(seed));
        testing::check_device_exchange(comm, on, problem, ++seed);
      }
    };
    on_ranks(GetParam(), body, {}, std::chrono::seconds(60), testing::kByPlans);
  }
};

TEST_P(CudaExperts, choices_of_any_number) {
  expect_bit_identical_to_the_cpu({
      {.tokens = {5, 3}},
      {.tokens = {7, 3}, .experts = 6, .top_k = 3, .alignment = 4},
      {.tokens = {0, 9}, .experts = 12, .top_k = 1, .ids = DType::kInt32},
      {.tokens = {90, 140}, .experts = 8, .top_k = 5, .hidden = 4, .alignment = 8},
      {.tokens = {0, 0}},
  });
}

TEST_P(CudaExperts, dtypes_and_widths) {
  expect_bit_identical_to_the_cpu({
      {.tokens = {5, 4}, .hidden = 6, .dtype = DType::kFloat64, .result = DType::kFloat64, .weights = DType::kFloat64},
      {.tokens = {5, 4}, .hidden = 3, .dtype = DType::kFloat32, .result = DType::kBFloat16},
      {.tokens = {5, 4}, .hidden = 7, .dtype = DType::kFloat16, .result = DType::kFloat32},
      {.tokens = {5, 4}, .hidden = 24, .dtype = DType::kBFloat16, .result = DType::kBFloat16},
      {.tokens = {5, 4}, .hidden = 144, .dtype = DType::kFloat8E4M3FN, .result = DType::kBFloat16, .scales = true},
      {.tokens = {5, 4}, .hidden = 32, .dtype = DType::kFloat8E5M2, .result = DType::kFloat16},
  });
}

TEST_P(CudaExperts, rows_over_nccl) {
  constexpr ExpertAlgorithm kOverNccl = ExpertAlgorithm::kAllToAll;
  expect_bit_identical_to_the_cpu({
      {.tokens = {7, 3}, .experts = 6, .top_k = 3, .alignment = 4, .algorithm = kOverNccl},
      {.tokens = {0, 9}, .experts = 12, .top_k = 1, .ids = DType::kInt32, .algorithm = kOverNccl},
      {.tokens = {5, 4},
       .hidden = 144,
       .dtype = DType::kFloat8E4M3FN,
       .result = DType::kBFloat16,
       .scales = true,
       .algorithm = kOverNccl},
  });
}

TEST_P(CudaExperts, dropped_choices) {
  if (IsSkipped()) return;
  const auto body = [](Communicator& comm, const OnDevice& on) {
    testing::OverflowProblem problem{.tokens = {100, 120}, .top_k = 4, .alignment = 8, .capacity = 200};
    problem.tokens.resize(static_cast<std::size_t>(comm.size()));
    testing::check_device_overflow(comm, on, problem, 7);
    problem.any_weights = true;
    testing::check_device_overflow(comm, on, problem, 8);
  };
  on_ranks(GetParam(), body, {}, std::chrono::seconds(60), testing::kByPlans);
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaExperts, ::testing::Values(1, 2),
                         [](const auto& of) { return "of_" + std::to_string(of.param); });

}  // namespace
}  // namespace accord
