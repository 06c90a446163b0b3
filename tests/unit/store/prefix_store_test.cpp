#include <gmock/gmock.h>

#include "accord/store.hpp"

namespace accord {
namespace {

using namespace std::chrono_literals;

TEST(PrefixStore, separates_the_keys_of_different_prefixes) {
  const auto below = make_memory_store();
  const auto first = make_prefix_store(below, "first");
  const auto second = make_prefix_store(below, "second");
  ASSERT_TRUE(first->set("key", "1").ok());
  ASSERT_TRUE(second->set("key", "2").ok());
  EXPECT_EQ(*first->get("key", 0s), "1");
  EXPECT_EQ(*below->get("second/key", 0s), "2");
  ASSERT_TRUE(first->erase("key").ok());
  EXPECT_EQ(*second->add("key", 1), 3);
}

TEST(PrefixStore, nests_and_describes_its_location) {
  const auto below = make_memory_store();
  const auto nested = make_prefix_store(make_prefix_store(below, "job"), "group");
  ASSERT_TRUE(nested->set("key", "value").ok());
  EXPECT_EQ(*below->get("job/group/key", 0s), "value");
  EXPECT_THAT(nested->describe(), testing::AllOf(testing::HasSubstr("memory"), testing::HasSubstr("group")));
  EXPECT_THAT(nested->get("absent", 0s).status().message(), testing::HasSubstr("job/group/absent"));
}

}  // namespace
}  // namespace accord
