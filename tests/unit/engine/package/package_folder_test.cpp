// Mapped files: which of their pages are read, and by how many threads.
#include "engine/package/package_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace accord::engine {
namespace {

constexpr std::uint64_t kMebibyte = 1 << 20;

class MappedFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("accord-mapped-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    std::ofstream(folder_ / "manifest.json") << "{}";
    text_.resize(13 * kMebibyte + 77);
    for (std::size_t i = 0; i < text_.size(); ++i) text_[i] = static_cast<char>(i * 31 + i / 4096);
    std::ofstream(folder_ / "weights", std::ios::binary) << text_;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<const FileMapping> mapping() const {
    auto folder = PackageFolder::open(folder_);
    return *folder->file("weights")->map();
  }

  // Returns whether each page of the file is in the page cache.
  std::vector<unsigned char> cached() const {
    UniqueFd fd(::open((folder_ / "weights").c_str(), O_RDONLY | O_CLOEXEC));
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* const all = ::mmap(nullptr, text_.size(), PROT_READ, MAP_SHARED, fd.get(), 0);
    std::vector<unsigned char> pages((text_.size() + page - 1) / page);
    EXPECT_EQ(::mincore(all, text_.size(), pages.data()), 0);
    ::munmap(all, text_.size());
    for (unsigned char& each : pages) each &= 1;
    return pages;
  }

  void drop() const {
    UniqueFd fd(::open((folder_ / "weights").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::fsync(fd.get()), 0);
    ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }

  std::filesystem::path folder_;
  std::string text_;
};

TEST_F(MappedFiles, only_the_expected_pages_are_read) {
  drop();
  if (const auto pages = cached(); std::count(pages.begin(), pages.end(), 1) != 0) GTEST_SKIP() << "pages stay";
  // Large pages inside, and parts of large pages at both ends.
  const std::uint64_t begin = 3 * kMebibyte + 5, end = 11 * kMebibyte + 9000;
  const auto mapped = mapping();
  mapped->expect(begin, end);
  std::vector<std::thread> threads;
  std::vector<Status> ends(4);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    threads.emplace_back([&, i] {
      const std::uint64_t from = begin + (end - begin) * i / 4, to = begin + (end - begin) * (i + 1) / 4;
      ends[i] = mapped->populate(from, to - from);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : ends) EXPECT_TRUE(status.ok()) << status.to_string();
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const auto pages = cached();
  for (std::uint64_t i = 0; i < pages.size(); ++i) {
    ASSERT_EQ(pages[i] != 0, (i + 1) * page > begin && i * page < end) << "page " << i;
  }
  const auto bytes = mapped->bytes().subspan(begin, end - begin);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(text_)).begin() + begin));
}

TEST_F(MappedFiles, a_file_truncated_while_it_is_mapped_is_corrupt) {
  const auto mapped = mapping();
  std::filesystem::resize_file(folder_ / "weights", 5 * kMebibyte);
  mapped->expect(0, text_.size());
  EXPECT_TRUE(mapped->populate(kMebibyte, 3 * kMebibyte).ok());
  for (const std::uint64_t from : {std::uint64_t{0}, 4 * kMebibyte, 7 * kMebibyte}) {
    const Status status = mapped->populate(from, 6 * kMebibyte);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("it was truncated"));
  }
}

}  // namespace
}  // namespace accord::engine
