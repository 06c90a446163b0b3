// The file store between real processes that are killed while they write.
#include <gmock/gmock.h>

#include "accord/store.hpp"
#include "base/clock.hpp"
#include "conformance/store/directory.hpp"
#include "multiproc/store/child.hpp"

namespace accord {
namespace {

using testing_support::Child;
using testing_support::kLong;
using namespace std::chrono_literals;

std::shared_ptr<Store> open_store(const testing_support::TemporaryDirectory& directory) {
  return make_file_store(directory.path()).value();
}

TEST(FileStoreProcesses, a_killed_writer_leaves_either_the_old_or_the_new_value) {
  const testing_support::TemporaryDirectory directory;
  const auto store = open_store(directory);
  ASSERT_TRUE(store->set("value", std::string(1 << 20, 'z')).ok());
  for (int round = 0; round < 30; ++round) {
    Child writer = Child::start([&](const Child::WriteLine& write_line) {
      write_line("running");
      for (char letter = 'a';; letter = letter == 'y' ? 'a' : static_cast<char>(letter + 1)) {
        if (!store->set("value", std::string(1 << 20, letter)).ok()) return 1;
      }
    });
    EXPECT_EQ(writer.read_line(), "running");
    usleep(static_cast<useconds_t>(300 * round));  // at a different moment of the write in each round
    writer.send(SIGKILL);
    EXPECT_EQ(writer.wait(), -SIGKILL);
    const Result<std::string> value = store->get("value", Duration::zero());
    ASSERT_TRUE(value.ok()) << value.status().to_string();
    EXPECT_EQ(value->size(), std::size_t{1} << 20);
    EXPECT_EQ(value->find_first_not_of(value->front()), std::string::npos);
    EXPECT_TRUE(store->set("other", "the lock is free").ok());
  }
}

TEST(FileStoreProcesses, no_acknowledged_add_is_lost_when_clients_are_killed) {
  const testing_support::TemporaryDirectory directory;
  const auto store = open_store(directory);
  std::int64_t answered = 0;
  for (int round = 0; round < 20; ++round) {
    Child adder = Child::start([&](const Child::WriteLine& write_line) -> int {
      for (;;) write_line(std::to_string(store->add("count", 1).value()));
    });
    std::int64_t last = 0;
    for (int n = 0; n < 5; ++n) last = std::stoll(adder.read_line());
    adder.send(SIGKILL);
    for (std::string line = adder.read_line(); !line.empty(); line = adder.read_line()) last = std::stoll(line);
    EXPECT_EQ(adder.wait(), -SIGKILL);
    // The last add may have been done but not reported.
    answered = store->add("count", 0).value();
    EXPECT_GE(answered, last);
    EXPECT_LE(answered, last + 1);
  }
  EXPECT_GE(answered, 100);
}

TEST(FileStoreProcesses, concurrent_adds_of_sixteen_clients_lose_nothing) {
  const testing_support::TemporaryDirectory directory;
  const auto store = open_store(directory);
  std::vector<Child> children;
  for (int i = 0; i < 16; ++i) {
    children.push_back(Child::start([&](const Child::WriteLine&) {
      const auto mine = open_store(directory);
      if (!mine->get("go", kLong).ok()) return 1;
      for (int n = 0; n < 50; ++n) {
        if (!mine->add("count", 1).ok()) return 2;
      }
      return 0;
    }));
  }
  ASSERT_TRUE(store->set("go", "").ok());
  for (Child& child : children) EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(*store->get("count", kLong), "800");
}

TEST(FileStoreProcesses, a_waiting_process_wakes_soon_after_another_sets_the_key) {
  const testing_support::TemporaryDirectory directory;
  Child reader = Child::start([&](const Child::WriteLine& write_line) {
    const auto store = open_store(directory);
    write_line("waiting");
    return store->get("key", kLong).ok() ? 0 : 1;
  });
  EXPECT_EQ(reader.read_line(), "waiting");
  const auto begin = Clock::now();
  ASSERT_TRUE(open_store(directory)->set("key", "value").ok());
  EXPECT_EQ(reader.wait(), 0);
  EXPECT_LT(Clock::now() - begin, 10s);
}

}  // namespace
}  // namespace accord
