#include "elastic/rounds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace accord::elastic {
namespace {

using ::testing::HasSubstr;

/// A store whose host stands still in the first get(), which therefore fails late.
class StillStore final : public Store {
 public:
  Status set(std::string_view, std::string_view) override { return {}; }
  Result<std::string> get(std::string_view, Duration) override {
    if (gets_++ > 0) return std::string("text");
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
    return Status(StatusCode::kTimeout, "the host does not answer");
  }
  Result<std::int64_t> add(std::string_view, std::int64_t) override { return 0; }
  Status erase(std::string_view) override { return {}; }
  std::string describe() const override { return "still"; }

 private:
  int gets_ = 0;
};

TEST(GroupStore, AHostThatStandsStillIsAskedAgain) {
  GroupStore store(std::make_shared<StillStore>(), "name", "elastic group \"name\"", std::chrono::minutes(1));
  const Result<std::optional<std::string>> text = store.find("key");
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(*text, "text");
}

TEST(GroupStore, PatienceWithAHostThatStandsStillEnds) {
  GroupStore store(std::make_shared<StillStore>(), "name", "elastic group \"name\"", std::chrono::seconds(1));
  const Result<std::optional<std::string>> text = store.find("key");
  EXPECT_EQ(text.status().code(), StatusCode::kIo);
  EXPECT_THAT(text.status().message(), HasSubstr("elastic group \"name\": the host does not answer"));
}

}  // namespace
}  // namespace accord::elastic
