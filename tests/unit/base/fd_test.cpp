#include "base/fd.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <thread>

namespace accord {
namespace {

using testing::HasSubstr;

constexpr auto kLong = std::chrono::seconds(60);
constexpr auto kShort = std::chrono::milliseconds(50);

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

struct Pair {
  UniqueFd left, right;
};
Pair make_pipe() {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}
Pair make_sockets() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = testing::TempDir() + "accord-fd-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

TEST(UniqueFd, closes_once_however_it_is_moved) {
  Pair pipe = make_pipe();
  const int number = pipe.left.get();
  UniqueFd moved = std::move(pipe.left);
  EXPECT_FALSE(pipe.left.valid());
  EXPECT_TRUE(is_open(number));
  moved = UniqueFd();
  EXPECT_FALSE(is_open(number));
  const int other = pipe.right.release();
  EXPECT_TRUE(is_open(other));
  UniqueFd(other).reset();
  EXPECT_FALSE(is_open(other));
}

TEST(ErrnoStatus, has_the_matching_code) {
  EXPECT_EQ(errno_status(ENOENT, "a").to_string(), "not_found: a: No such file or directory");
  EXPECT_EQ(errno_status(ENOMEM, "a").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(errno_status(EMFILE, "a").code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(errno_status(EMFILE, "a").message(), HasSubstr("ulimit -n"));
  EXPECT_EQ(errno_status(EACCES, "a").code(), StatusCode::kIo);
}

TEST(ReadAll, times_out_at_its_deadline_on_blocking_pipes_and_sockets) {
  for (const Pair& pair : {make_pipe(), make_sockets()}) {
    std::array<std::byte, 4> bytes;
    const Status status = read_all(pair.left.get(), bytes, Deadline::in(kShort), "a peer");
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_THAT(status.message(), HasSubstr("a peer"));
  }
}

TEST(WriteAll, times_out_at_its_deadline_without_a_reader) {
  const std::vector<std::byte> large(8 << 20);
  for (const Pair& pair : {make_pipe(), make_sockets()}) {
    EXPECT_EQ(write_all(pair.right.get(), large, Deadline::in(kShort), "a peer").code(), StatusCode::kTimeout);
  }
}

TEST(ReadAll, reports_a_peer_that_closed_midway) {
  for (const auto make : {make_pipe, make_sockets}) {
    Pair pair = make();
    const std::array<std::byte, 2> half = {};
    ASSERT_TRUE(write_all(pair.right.get(), half, Deadline::in(kLong), "").ok());
    pair.right.reset();
    std::array<std::byte, 4> bytes;
    EXPECT_EQ(read_all(pair.left.get(), bytes, Deadline::in(kLong), "x").code(), StatusCode::kPeerLost);
  }
}

TEST(WriteAll, to_a_socket_whose_peer_left_is_an_error_and_not_a_signal) {
  Pair pair = make_sockets();
  pair.left.reset();
  const std::array<std::byte, 2> bytes = {};
  EXPECT_EQ(write_all(pair.right.get(), bytes, Deadline::in(kLong), "x").code(), StatusCode::kPeerLost);
}

TEST(WriteAll, and_read_all_move_more_than_the_kernel_holds) {
  for (const bool non_blocking : {false, true}) {
    for (const Pair& pair : {make_pipe(), make_sockets()}) {
      if (non_blocking) {
        fcntl(pair.left.get(), F_SETFL, O_NONBLOCK);
        fcntl(pair.right.get(), F_SETFL, O_NONBLOCK);
      }
      std::vector<std::byte> sent(3'000'001);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 251);
      std::vector<std::byte> received(sent.size());
      Status writing;
      std::thread writer([&] { writing = write_all(pair.right.get(), sent, Deadline::in(kLong), "x"); });
      const Status reading = read_all(pair.left.get(), received, Deadline::in(kLong), "x");
      writer.join();
      EXPECT_TRUE(writing.ok() && reading.ok());
      EXPECT_TRUE(received == sent);
    }
  }
}

TEST(WaitReadable, is_ok_when_the_other_side_closed_and_an_error_on_a_closed_descriptor) {
  Pair pair = make_sockets();
  pair.right.reset();
  EXPECT_TRUE(wait_readable(pair.left.get(), Deadline::in(kLong), "x").ok());
  const int number = pair.left.release();
  close(number);
  EXPECT_EQ(wait_readable(number, Deadline::in(kLong), "x").code(), StatusCode::kIo);
}

TEST(ReadFile, reads_whole_files_including_those_in_proc) {
  TemporaryDirectory directory;
  std::string contents(100'000, 'a');
  contents[77] = '\0';
  ASSERT_TRUE(write_file(directory / "f", contents).ok());
  EXPECT_EQ(*read_file(directory / "f"), contents);
  EXPECT_EQ(*read_file(directory / "f", contents.size()), contents);
  EXPECT_THAT(*read_file("/proc/self/status"), HasSubstr("VmRSS"));
}

TEST(ReadFile, rejects_missing_files_large_files_and_directories) {
  TemporaryDirectory directory;
  EXPECT_EQ(read_file(directory / "none").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(read_file(directory / "none").status().message(), HasSubstr(directory / "none"));
  ASSERT_TRUE(write_file(directory / "f", "12345").ok());
  EXPECT_EQ(read_file(directory / "f", 4).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_file(directory / "").status().code(), StatusCode::kIo);
}

TEST(WriteFile, replaces_the_file_as_a_whole_and_leaves_nothing_else) {
  TemporaryDirectory directory;
  ASSERT_TRUE(write_file(directory / "f", std::string(1 << 20, 'a')).ok());
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i)
      EXPECT_TRUE(write_file(directory / "f", std::string(1 << 20, i % 2 == 0 ? 'a' : 'b')).ok());
  });
  for (int i = 0; i < 50; ++i) {
    const Result<std::string> seen = read_file(directory / "f");
    ASSERT_TRUE(seen.ok()) << seen.status().to_string();
    EXPECT_EQ(*seen, std::string(1 << 20, seen->front()));
  }
  writer.join();
  EXPECT_EQ(directory.entries(), 1u);
}

TEST(WriteFile, preserves_links_pipes_and_directories) {
  TemporaryDirectory directory;
  ASSERT_TRUE(write_file(directory / "target", "old").ok());
  ASSERT_EQ(symlink("target", (directory / "link").c_str()), 0);
  ASSERT_TRUE(write_file(directory / "link", "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "link"));
  EXPECT_EQ(read_file(directory / "target").value(), "new");

  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0600), 0);
  const UniqueFd reader(open((directory / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(write_file(directory / "pipe", "through").ok());
  std::string got(7, '-');
  ASSERT_EQ(read(reader.get(), got.data(), got.size()), 7);
  EXPECT_EQ(got, "through");

  const Status status = write_file(directory / ".", "x");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("directory"), std::string::npos) << status.to_string();
}

TEST(WriteFile, into_a_missing_directory_names_the_path) {
  TemporaryDirectory directory;
  const Status status = write_file(directory / "no/f", "x");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(directory / "no/f"));
  ASSERT_EQ(mkdir((directory / "d").c_str(), 0755), 0);
  EXPECT_EQ(write_file(directory / "d", "x").code(), StatusCode::kIo);
  EXPECT_EQ(directory.entries(), 1u);
}

}  // namespace
}  // namespace accord
