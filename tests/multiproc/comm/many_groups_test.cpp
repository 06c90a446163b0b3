// Many groups of the same processes: the exact cost of each, and their failures when descriptors run out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "ranks/open_descriptors.hpp"
#include "ranks/process_ranks.hpp"

namespace accord {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::open_descriptors;
using testing::ProcessRanks;
using testing::TemporaryDirectory;

constexpr int kSize = 4;
constexpr int kGroups = 64;

int outcome() { return ::testing::Test::HasFailure() ? 1 : 0; }

/// Returns, by inode, the KiB that this process has touched of each window that it has mapped, its own and its
/// peers'.
std::map<std::uint64_t, long> touched_windows() {
  std::ifstream maps("/proc/self/smaps");
  std::map<std::uint64_t, long> touched;
  long* current = nullptr;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first, rights, offset, device;
    words >> first;
    if (first.back() != ':') {
      std::uint64_t inode = 0;
      words >> rights >> offset >> device >> inode;
      current = line.find("memfd:accord-rank") != std::string::npos ? &touched[inode] : nullptr;
    } else if (current != nullptr && first == "Rss:") {
      long kib = 0;
      words >> kib;
      *current += kib;
    }
  }
  return touched;
}

Result<Communicator> join(const std::string& directory, Rank rank) {
  Result<std::shared_ptr<Store>> store = make_file_store(directory);
  if (!store.ok()) return store.status();
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(60);
  options.transport = "shm";
  return Communicator::create(*store, rank, kSize, options);
}

TEST(ManyGroups, use_no_descriptor_and_one_page_for_each_rank_until_first_use) {
  const TemporaryDirectory directory;
  ProcessRanks ranks(kSize, [&](Rank rank) {
    Result<Communicator> world = join(directory.path(), rank);
    EXPECT_TRUE(world.ok()) << world.status().to_string();
    const std::size_t descriptors = open_descriptors();
    const std::size_t windows = touched_windows().size();
    EXPECT_EQ(windows, static_cast<std::size_t>(kSize));
    const std::map<std::uint64_t, long> parents = touched_windows();
    std::vector<Communicator> groups;
    for (int g = 0; g < kGroups; ++g) {
      Result<std::optional<Communicator>> made = world->split(0, rank, "group" + std::to_string(g));
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      groups.push_back(**made);
    }
    EXPECT_TRUE(world->barrier().ok());
    EXPECT_EQ(open_descriptors(), descriptors);
    // One page of words behind each window, this rank's and its peers'.
    long kib = 0;
    for (const auto& [inode, touched] : touched_windows())
      if (!parents.contains(inode)) kib += touched;
    EXPECT_LE(kib, kGroups * 4 * kSize);
    for (Communicator& group : groups) EXPECT_TRUE(group.barrier().ok());
    EXPECT_TRUE(world->barrier().ok());
    groups.clear();
    EXPECT_TRUE(world->barrier().ok());
    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(touched_windows().size(), windows) << "all are unmapped";
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(Deadline::in(std::chrono::seconds(120))), Each(0));
}

TEST(ManyGroups, are_all_notified_of_a_death) {
  const TemporaryDirectory directory;
  ProcessRanks ranks(kSize, [&](Rank rank) {
    Result<Communicator> world = join(directory.path(), rank);
    EXPECT_TRUE(world.ok()) << world.status().to_string();
    std::vector<Communicator> groups;
    for (int g = 0; g < kGroups; ++g) groups.push_back(**world->split(0, rank, "group" + std::to_string(g)));
    EXPECT_TRUE(world->barrier().ok());
    if (rank == 2) _exit(3);
    for (Communicator& group : groups) {
      const Status status = group.barrier();
      EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
      EXPECT_EQ(status.ranks(), std::vector<Rank>{2});
    }
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(Deadline::in(std::chrono::seconds(120))), ::testing::ElementsAre(0, 0, 3, 0));
}

TEST(ManyGroups, report_a_lack_of_descriptors_to_all_ranks_with_the_limit) {
  const TemporaryDirectory directory;
  ProcessRanks ranks(kSize, [&](Rank rank) {
    Result<Communicator> world = join(directory.path(), rank);
    EXPECT_TRUE(world.ok()) << world.status().to_string();
    const std::size_t descriptors = open_descriptors();
    rlimit limit = {};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlim_t before = limit.rlim_cur;
    if (rank == 1) {
      limit.rlim_cur = descriptors + 5;  // enough for window and listener, but not for the peers
      EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    const Status status = world->split(0, rank, "part").status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.ranks(), std::vector<Rank>{1}) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("raise ulimit -n, which is"));
    limit.rlim_cur = before;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(open_descriptors(), descriptors) << "nothing is left of the attempt";
    const Result<std::optional<Communicator>> again = world->split(0, rank, "part");
    EXPECT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_TRUE(world->barrier().ok());
    return outcome();
  });
  EXPECT_THAT(ranks.wait_all(Deadline::in(std::chrono::seconds(120))), Each(0));
}

}  // namespace
}  // namespace accord
