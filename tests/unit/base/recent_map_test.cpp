#include "base/recent_map.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace accord {
namespace {

TEST(RecentMap, evicts_the_least_recently_used) {
  RecentMap<int, std::string> map(3);
  EXPECT_EQ(map.find(1), nullptr);
  for (const int key : {1, 2, 3}) map.add(key, std::to_string(key));
  ASSERT_NE(map.find(1), nullptr);  // 2 is the oldest now
  map.add(4, "4");
  EXPECT_EQ(map.size(), 3U);
  EXPECT_EQ(map.find(2), nullptr);
  for (const int key : {1, 3, 4}) {
    const std::string* const found = map.find(key);
    ASSERT_NE(found, nullptr) << key;
    EXPECT_EQ(*found, std::to_string(key));
  }
  map.add(5, "5");
  EXPECT_EQ(map.find(1), nullptr) << "it was found before the others";
}

TEST(RecentMap, values_keep_their_addresses_and_are_destroyed_with_their_keys) {
  RecentMap<int, std::shared_ptr<int>> map(2);
  const auto first = std::make_shared<int>(1);
  const std::shared_ptr<int>* const place = &map.add(1, first);
  map.add(2, std::make_shared<int>(2));
  EXPECT_EQ(map.find(1), place);
  map.add(3, nullptr);
  EXPECT_EQ(map.find(1), place);
  map.add(4, nullptr);
  map.add(5, nullptr);
  EXPECT_EQ(first.use_count(), 1) << "the last one that holds it";
}

}  // namespace
}  // namespace accord
