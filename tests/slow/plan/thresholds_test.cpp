// The sizes around the default table's thresholds that take long: on many ranks, and of megabytes. unit/plan has the others.
#include "unit/plan/thresholds.hpp"

#include "sanitized.hpp"

namespace accord::plan {
namespace {

using accord::testing::kSanitized;

TEST(ManyRanks, every_algorithm_gives_the_reference_around_the_thresholds_of_the_default_table) {
  testing::run_around_thresholds(64, std::size_t{1} << 10, std::size_t{64} << 10);
}

class FewRanks : public ::testing::TestWithParam<int> {};

TEST_P(FewRanks, every_algorithm_gives_the_reference_around_thresholds_of_megabytes) {
  testing::run_around_thresholds(GetParam(), std::size_t{64} << 10, std::size_t{1} << 30);
}

INSTANTIATE_TEST_SUITE_P(Thresholds, FewRanks, ::testing::Range(1, kSanitized ? 3 : 6));

}  // namespace
}  // namespace accord::plan
