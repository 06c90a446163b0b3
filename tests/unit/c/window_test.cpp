// Windows as C handles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::is_ok;
using testing::last_error_ranks;
using testing::run_c_ranks;

constexpr int64_t kMillisecond = 1000000;

TEST(CWindows, put_data_arrives_and_can_be_read_by_get_and_mapping) {
  run_c_ranks(2, [](accord_communicator_t* communicator, int rank) {
    accord_window_t* window = nullptr;
    const size_t contributed = 100 * (static_cast<size_t>(rank) + 1);
    ASSERT_TRUE(is_ok(accord_window_create(communicator, contributed, 0, &window)));
    void* memory = nullptr;
    size_t bytes = 0;
    ASSERT_TRUE(is_ok(accord_window_local(window, &memory, &bytes)));
    EXPECT_EQ(bytes, contributed);
    const std::string text = rank == 0 ? "from rank 0" : "from rank 1";
    const int other = 1 - rank;
    ASSERT_TRUE(is_ok(accord_window_put(window, text.c_str(), text.size() + 1, other, 10)));
    ASSERT_TRUE(is_ok(accord_window_signal(window, other)));
    ASSERT_TRUE(is_ok(accord_window_wait(window, other, 0)));
    EXPECT_STREQ(static_cast<char*>(memory) + 10, rank == 0 ? "from rank 1" : "from rank 0");
    char back[12] = "";
    ASSERT_TRUE(is_ok(accord_window_get(window, back, 12, other, 10)));
    EXPECT_EQ(back, text);
    void* theirs = nullptr;
    ASSERT_TRUE(is_ok(accord_window_peer(window, other, &theirs, nullptr)));
    EXPECT_STREQ(static_cast<char*>(theirs) + 10, text.c_str());

    EXPECT_EQ(accord_window_put(window, back, 12, other, 200), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("12 x uint8 at offset 200 do not fit"));
    EXPECT_EQ(accord_window_peer(window, 2, &theirs, nullptr), ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(accord_window_wait(window, other, kMillisecond), ACCORD_TIMEOUT);
    EXPECT_THAT(last_error_ranks(), ElementsAre(other));
    EXPECT_EQ(accord_window_wait(window, other, -1), ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(accord_window_signal(nullptr, other), ACCORD_INVALID_ARGUMENT);
    ASSERT_TRUE(is_ok(accord_barrier(communicator, nullptr)));
    accord_window_free(window);
    accord_window_free(nullptr);
  });
}

TEST(CWindows, blocks_are_allocated_and_released) {
  run_c_ranks(1, [](accord_communicator_t* communicator, int) {
    accord_window_t* window = nullptr;
    ASSERT_TRUE(is_ok(accord_window_create(communicator, 4096, 0, &window)));
    void *piece = nullptr, *more = nullptr;
    ASSERT_TRUE(is_ok(accord_window_allocate(window, 3000, 0, &piece)));
    std::memset(piece, 1, 3000);
    EXPECT_EQ(accord_window_allocate(window, 3000, 0, &more), ACCORD_RESOURCE_EXHAUSTED);
    EXPECT_EQ(more, nullptr);
    EXPECT_EQ(accord_window_allocate(window, 1, 3, &more), ACCORD_INVALID_ARGUMENT);
    ASSERT_TRUE(is_ok(accord_window_release(window, piece)));
    EXPECT_EQ(accord_window_release(window, piece), ACCORD_INVALID_ARGUMENT);
    ASSERT_TRUE(is_ok(accord_window_allocate(window, 3000, 4096, &more)));
    accord_window_free(window);
  });
}

}  // namespace
}  // namespace accord
