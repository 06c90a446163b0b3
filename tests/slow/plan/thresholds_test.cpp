// The sizes around the default table's thresholds on every number of ranks, and sizes of megabytes on few ranks.
// unit/plan has small sizes on small groups.
#include "unit/plan/thresholds.hpp"

#include "sanitized.hpp"

namespace accord::plan {
namespace {

using accord::testing::kSanitized;

class EverySize : public ::testing::TestWithParam<int> {};

TEST_P(EverySize, every_algorithm_matches_the_reference_around_the_thresholds_of_the_default_table) {
  testing::run_around_thresholds(GetParam(), 1, std::size_t{64} << 10);
}

INSTANTIATE_TEST_SUITE_P(Thresholds, EverySize, ::testing::Range(1, 18));
INSTANTIATE_TEST_SUITE_P(ManyRanks, EverySize, ::testing::Values(64));

class FewRanks : public ::testing::TestWithParam<int> {};

TEST_P(FewRanks, every_algorithm_matches_the_reference_around_thresholds_of_megabytes) {
  testing::run_around_thresholds(GetParam(), std::size_t{64} << 10, std::size_t{1} << 30);
}

INSTANTIATE_TEST_SUITE_P(Thresholds, FewRanks, ::testing::Range(1, kSanitized ? 3 : 6));

}  // namespace
}  // namespace accord::plan
