// The memory that the machine and its control groups have left, and how a limit is enforced.
#include "engine/runtime/memory_budget.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace accord::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// A machine with 1000 MiB available, in its own folder.
class Machine {
 public:
  Machine() {
    std::string name = (std::filesystem::temp_directory_path() / "accord-memory-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    write("proc/meminfo", "MemTotal:       4096000 kB\nMemFree:          10000 kB\nMemAvailable:   1024000 kB\n");
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  AvailableMemory available() const { return *available_memory(root_); }

 private:
  std::filesystem::path root_;
};

TEST(AvailableMemory, is_that_of_the_machine_without_control_groups) {
  const Machine machine;
  EXPECT_EQ(machine.available().bytes, 1000 * kMiB);
  EXPECT_EQ(machine.available().limited_by, "the machine");
}

TEST(AvailableMemory, is_the_remainder_of_the_narrowest_control_group_of_the_process) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/job/rank\n");
  machine.write("sys/fs/cgroup/job/rank/memory.max", "max\n");
  machine.write("sys/fs/cgroup/job/rank/memory.current", "1048576\n");
  EXPECT_EQ(machine.available().bytes, 1000 * kMiB);
  machine.write("sys/fs/cgroup/job/memory.max", "524288000\n");      // 500 MiB
  machine.write("sys/fs/cgroup/job/memory.current", "314572800\n");  // 300 MiB
  machine.write("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 104857600\nactive_file 7\n");
  EXPECT_EQ(machine.available().bytes, 300 * kMiB);
  EXPECT_EQ(machine.available().limited_by, "the control group");
  machine.write("sys/fs/cgroup/job/memory.current", "734003200\n");  // more than its limit
  EXPECT_EQ(machine.available().bytes, 0);
}

TEST(AvailableMemory, supports_the_first_version_of_control_groups) {
  const Machine machine;
  machine.write("proc/self/cgroup", "5:cpu:/\n4:memory:/job\n");
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  EXPECT_EQ(machine.available().bytes, 1000 * kMiB);
  machine.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "209715200\n");
  machine.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "104857600\n");
  EXPECT_EQ(machine.available().bytes, 100 * kMiB);
}

TEST(MemoryBudget, rejects_parts_that_do_not_fit_beside_earlier_ones_and_names_all) {
  MemoryBudget budget(100 * kMiB);
  ASSERT_TRUE(budget.reserve({"weights", 60 * kMiB}).ok());
  ASSERT_TRUE(budget.reserve({"arena", 10 * kMiB}).ok());
  EXPECT_EQ(*budget.left(), 30 * kMiB);
  const Status refused = budget.reserve({"cache", 31 * kMiB});
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("101 MiB are needed"), HasSubstr("weights 60 MiB"), HasSubstr("arena 10 MiB"),
                    HasSubstr("cache 31 MiB"), HasSubstr("limit is 100 MiB")));
  budget.release({"arena", 10 * kMiB});
  ASSERT_TRUE(budget.reserve({"cache", 40 * kMiB}).ok());
  EXPECT_THAT(budget.reserve({"cache", 1}).message(), Not(HasSubstr("arena")));
}

TEST(MemoryBudget, without_a_limit_is_the_available_memory) {
  MemoryBudget budget;
  const MemoryPart little{"weights", kMiB};
  EXPECT_TRUE(budget.check(std::span(&little, 1)).ok());
  const MemoryPart much{"weights", std::uint64_t{1} << 60};
  const Status refused = budget.check(std::span(&much, 1));
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("weights 1 EiB"));
}

}  // namespace
}  // namespace accord::engine
