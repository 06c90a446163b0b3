// Nothing of a shared segment outlives the processes that had it, however they ended. An anonymous file lives exactly
// as long as some process has it open or mapped, so the exact count is the number of processes of this machine that
// show its name under /proc. The kernel's own sum of shared memory (Shmem) confirms it, with a margin for what other
// processes do meanwhile.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>

#include "base/text.hpp"
#include "memory/shared_segment.hpp"
#include "multiproc/store/child.hpp"

namespace accord::memory {
namespace {

using testing_support::Child;

constexpr std::size_t kBytes = std::size_t{32} << 20;

std::string unique_name(std::string_view test) {
  return "accord-" + std::string(test) + "-" + std::to_string(getpid());
}

/// Returns the number of processes that have an anonymous file of this name open or mapped.
int holders(const std::string& name) {
  int count = 0;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const std::string path = process.path();
    if (path.find_first_not_of("0123456789", std::strlen("/proc/")) != std::string::npos) continue;
    const Result<std::string> maps = read_file(path + "/maps");  // vanished, or not ours: it holds none of our memory
    bool holds = maps.ok() && maps->find("/memfd:" + name) != std::string::npos;
    std::error_code error;
    for (std::filesystem::directory_iterator fd(path + "/fd", error), end; !error && fd != end; fd.increment(error)) {
      std::error_code unreadable;
      const std::string target = std::filesystem::read_symlink(fd->path(), unreadable);
      holds = holds || target.find("/memfd:" + name) != std::string::npos;
    }
    count += holds ? 1 : 0;
  }
  return count;
}

std::size_t shmem_bytes() {
  const std::string info = read_file("/proc/meminfo").value();
  const std::size_t at = info.find("Shmem:");
  return std::stoull(info.substr(at + 6)) * 1024;
}

std::size_t entries_of_dev_shm() {
  std::error_code error;
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/dev/shm", error), {}));
}

void send_fd(int socket, int fd) {
  char byte = 0;
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  (void)sendmsg(socket, &message, MSG_NOSIGNAL);
}

UniqueFd receive_fd(int socket) {
  char byte = 0;
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0 || CMSG_FIRSTHDR(&message) == nullptr) return UniqueFd();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return UniqueFd(fd);
}

TEST(SharedSegmentProcesses, nothing_is_left_after_kill_9) {
  constexpr int kRounds = 16;
  const std::string name = unique_name("killed");
  const std::size_t shmem_before = shmem_bytes();
  const std::size_t dev_shm_before = entries_of_dev_shm();
  for (int round = 0; round < kRounds; ++round) {
    Child owner = Child::start([&](const Child::WriteLine& write_line) {
      const auto segment = SharedSegment::create(name, kBytes);
      if (!segment.ok()) return 1;
      std::memset(segment->bytes().data(), 1, kBytes);
      write_line("touched");
      pause();
      return 0;
    });
    ASSERT_EQ(owner.read_line(), "touched");
    EXPECT_EQ(holders(name), 1);
    owner.send(SIGKILL);
    EXPECT_EQ(owner.wait(), -SIGKILL);
    EXPECT_EQ(holders(name), 0);
  }
  EXPECT_EQ(entries_of_dev_shm(), dev_shm_before);
  // If the segments still existed, they would use 16 x 32 MiB.
  const Deadline deadline = Deadline::in(std::chrono::seconds(30));
  while (shmem_bytes() > shmem_before + kRounds * kBytes / 2 && !deadline.passed()) usleep(10'000);
  EXPECT_LE(shmem_bytes(), shmem_before + kRounds * kBytes / 2);
}

TEST(SharedSegmentProcesses, a_peer_can_read_after_the_creators_death_and_the_last_process_frees_the_segment) {
  const std::string name = unique_name("peer");
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  UniqueFd left(sockets[0]);
  UniqueFd right(sockets[1]);
  Child creator = Child::start([&](const Child::WriteLine& write_line) {
    auto segment = SharedSegment::create(name, kBytes).value();
    std::memset(segment.bytes().data(), 5, kBytes);
    send_fd(left.get(), segment.fd());
    write_line("sent");
    pause();
    return 0;
  });
  Child peer = Child::start([&](const Child::WriteLine& write_line) {
    auto segment = SharedSegment::open(receive_fd(right.get()), kBytes);
    if (!segment.ok()) return 1;
    segment->close_fd();
    write_line("opened");
    for (char letter = 0; read(right.get(), &letter, 1) < 0;) {
    }
    const std::span<std::byte> bytes = segment->bytes();
    for (std::size_t i = 0; i < kBytes; i += 4096) {
      if (bytes[i] != std::byte{5}) return 2;
    }
    write_line("read");
    pause();
    return 0;
  });
  ASSERT_EQ(creator.read_line(), "sent");
  ASSERT_EQ(peer.read_line(), "opened");
  EXPECT_EQ(holders(name), 2);
  creator.send(SIGKILL);
  creator.wait();
  EXPECT_EQ(holders(name), 1);
  ASSERT_EQ(write(left.get(), "x", 1), 1);
  EXPECT_EQ(peer.read_line(), "read");
  peer.send(SIGKILL);
  peer.wait();
  EXPECT_EQ(holders(name), 0);
}

TEST(SharedSegmentProcesses, does_not_pass_through_exec) {
  const std::string name = unique_name("exec");
  Child program = Child::start([&](const Child::WriteLine& write_line) {
    const auto segment = SharedSegment::create(name, 4096).value();
    if (holders(name) != 1) return 1;
    write_line("made");
    execl("/bin/sleep", "sleep", "60", nullptr);
    return 2;
  });
  ASSERT_EQ(program.read_line(), "made");
  const Deadline deadline = Deadline::in(std::chrono::seconds(30));
  while (holders(name) != 0 && !deadline.passed()) usleep(1000);
  EXPECT_EQ(holders(name), 0);
}

}  // namespace
}  // namespace accord::memory
