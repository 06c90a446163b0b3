// Ranks on machines other than this one: several memory nodes, two processors per core, interleaved numbers.
#include "cli/launch/cpu_binding.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accord::cli {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two memory nodes with two cores of two processors each. Neighboring numbers are on different nodes.
constexpr ProcessorPlace kMachine[] = {{0, 0, 0}, {1, 1, 1}, {2, 2, 0}, {3, 3, 1},
                                       {4, 0, 0}, {5, 1, 1}, {6, 2, 0}, {7, 3, 1}};

TEST(CpuBinding, by_memory_nodes_each_rank_has_one_whole_node) {
  EXPECT_THAT(processors_of_ranks(Binding::kNuma, 2, kMachine),
              ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  EXPECT_THAT(
      processors_of_ranks(Binding::kNuma, 4, kMachine),
      ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7), ElementsAre(1, 3, 5, 7)));
  EXPECT_THAT(processors_of_ranks(Binding::kNuma, 1, kMachine), ElementsAre(ElementsAre(0, 2, 4, 6)));
}

TEST(CpuBinding, by_cores_neighbouring_ranks_are_on_one_node) {
  EXPECT_THAT(processors_of_ranks(Binding::kCore, 4, kMachine),
              ElementsAre(ElementsAre(0, 4), ElementsAre(2, 6), ElementsAre(1, 5), ElementsAre(3, 7)));
  EXPECT_THAT(processors_of_ranks(Binding::kCore, 2, kMachine),
              ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  EXPECT_THAT(processors_of_ranks(Binding::kCore, 8, kMachine).back(), ElementsAre(3, 7));
}

TEST(CpuBinding, none_binds_no_rank) { EXPECT_THAT(processors_of_ranks(Binding::kNone, 3, kMachine), Each(IsEmpty())); }

}  // namespace
}  // namespace accord::cli
