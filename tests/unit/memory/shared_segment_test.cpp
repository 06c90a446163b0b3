#include "memory/shared_segment.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "resource_limit.hpp"

namespace accord::memory {
namespace {

using ::testing::HasSubstr;

std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

/// Returns the resident bytes of this process, by /proc/self/statm.
std::size_t resident_bytes() {
  const std::string statm = read_file("/proc/self/statm").value();
  return std::stoull(statm.substr(statm.find(' '))) * page();
}

TEST(SharedSegment, is_zeroed_and_consists_of_whole_pages) {
  for (const std::size_t bytes : {std::size_t{1}, page() - 1, page(), page() + 1, std::size_t{1'000'000}}) {
    const auto segment = SharedSegment::create("test", bytes);
    ASSERT_TRUE(segment.ok()) << segment.status().to_string();
    EXPECT_GE(segment->bytes().size(), bytes);
    EXPECT_LT(segment->bytes().size(), bytes + page());
    EXPECT_EQ(segment->bytes().size() % page(), 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment->bytes().data()) % page(), 0u);
    EXPECT_TRUE(
        std::all_of(segment->bytes().begin(), segment->bytes().end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(SharedSegment, opened_by_its_descriptor_is_the_same_memory) {
  const auto mine = SharedSegment::create("test", 5000).value();
  const auto theirs = SharedSegment::open(UniqueFd(dup(mine.fd())), 5000);
  ASSERT_TRUE(theirs.ok()) << theirs.status().to_string();
  EXPECT_EQ(theirs->bytes().size(), mine.bytes().size());
  mine.bytes()[4999] = std::byte{42};
  EXPECT_EQ(theirs->bytes()[4999], std::byte{42});
  theirs->bytes()[0] = std::byte{7};
  EXPECT_EQ(mine.bytes()[0], std::byte{7});
}

TEST(SharedSegment, stays_mapped_without_its_descriptor_and_its_creator) {
  auto creator = std::make_unique<SharedSegment>(SharedSegment::create("test", 4096).value());
  auto peer = SharedSegment::open(UniqueFd(dup(creator->fd())), 4096).value();
  creator->bytes()[1] = std::byte{9};
  creator.reset();
  peer.close_fd();
  EXPECT_EQ(peer.fd(), -1);
  EXPECT_EQ(peer.bytes()[1], std::byte{9});
}

TEST(SharedSegment, moves_its_mapping_and_leaves_nothing_behind) {
  auto first = SharedSegment::create("test", 4096).value();
  std::byte* const address = first.bytes().data();
  SharedSegment second = std::move(first);
  EXPECT_TRUE(first.bytes().empty());
  EXPECT_EQ(first.fd(), -1);
  EXPECT_EQ(second.bytes().data(), address);
  second = SharedSegment::create("test", 8192).value();
  EXPECT_EQ(second.bytes().size(), 8192u);
  EXPECT_THAT(read_file("/proc/self/maps").value(), HasSubstr("/memfd:test"));
  { const SharedSegment last = std::move(second); }
  EXPECT_THAT(read_file("/proc/self/maps").value(), ::testing::Not(HasSubstr("/memfd:test")));
}

TEST(SharedSegment, can_be_neither_truncated_nor_grown_by_a_peer) {
  const auto segment = SharedSegment::create("test", 8192).value();
  EXPECT_NE(ftruncate(segment.fd(), 0), 0);
  EXPECT_NE(ftruncate(segment.fd(), 16384), 0);
  EXPECT_NE(fcntl(segment.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedSegment, of_another_size_or_without_seals_is_a_mismatch_with_both_sizes) {
  const auto segment = SharedSegment::create("test", 8192).value();
  const Status status = SharedSegment::open(UniqueFd(dup(segment.fd())), 4096).status();
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_THAT(status.message(), HasSubstr("4096 bytes were expected, it has 8192"));
  EXPECT_EQ(SharedSegment::open(UniqueFd(dup(segment.fd())), 0).status().code(), StatusCode::kMismatch);

  const UniqueFd unsealed(memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  const Status refused = SharedSegment::open(UniqueFd(dup(unsealed.get())), 8192).status();
  EXPECT_EQ(refused.code(), StatusCode::kMismatch);
  EXPECT_THAT(refused.message(), HasSubstr("not sealed"));
  EXPECT_FALSE(SharedSegment::open(UniqueFd(), 8192).ok());
}

TEST(SharedSegment, of_zero_or_absurd_size_is_rejected) {
  EXPECT_EQ(SharedSegment::create("test", 0).status().code(), StatusCode::kInvalidArgument);
  for (const std::size_t bytes : {std::size_t{1} << 62, ~std::size_t{0}}) {
    const Status status = SharedSegment::create("test", bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("shared segment \"test\""));
  }
}

TEST(SharedSegment, reports_a_lack_of_descriptors) {
  const int lowest_free = UniqueFd(dup(0)).get();
  const testing::ResourceLimit limit(RLIMIT_NOFILE, static_cast<rlim_t>(lowest_free));
  const Status status = SharedSegment::create("test", 4096).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("ulimit -n"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(SharedSegment, reports_a_lack_of_address_space_and_releases_the_descriptor) {
  const int lowest_free = UniqueFd(dup(0)).get();
  {
    const testing::ResourceLimit limit(RLIMIT_AS, rlim_t{1} << 30);
    const Status status = SharedSegment::create("test", std::size_t{2} << 30).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr("2 GiB: Cannot allocate memory"));
  }
  EXPECT_EQ(UniqueFd(dup(0)).get(), lowest_free);
}
#endif

TEST(SharedSegment, uses_memory_only_for_touched_pages) {
  const std::size_t before = resident_bytes();
  const auto segment = SharedSegment::create("test", std::size_t{1} << 30).value();
  segment.bytes()[0] = std::byte{1};
  EXPECT_LT(resident_bytes(), before + (64u << 20));
}

TEST(SharedSegment, accepts_a_name_of_any_length_and_content) {
  EXPECT_TRUE(SharedSegment::create(std::string(10'000, 'n'), 4096).ok());
  EXPECT_TRUE(SharedSegment::create("", 4096).ok());
  EXPECT_TRUE(SharedSegment::create("a/b \n\xff", 4096).ok());
}

}  // namespace
}  // namespace accord::memory
