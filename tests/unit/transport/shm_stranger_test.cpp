// Strangers at the listener of transport shm: whatever they send, they get nothing, and the real peers still connect.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "ranks/open_descriptors.hpp"
#include "transport/shm/hello.hpp"
#include "transport/shm/unix_socket.hpp"
#include "transport/transport.hpp"

namespace accord::transport {
namespace {

using accord::testing::open_descriptors;
using ::testing::HasSubstr;

constexpr std::size_t kBytes = 4096;

struct Found {
  std::string socket_name;
  std::string cookie;
};

// Reads "shm/1 <rank> <bytes> <socket name> <cookie>".
Found read(const std::string& descriptor) {
  std::istringstream words(descriptor);
  std::string skipped;
  Found found;
  words >> skipped >> skipped >> skipped >> found.socket_name >> found.cookie;
  return found;
}

UniqueFd connect_as_stranger(const Found& found) {
  Result<UniqueFd> socket = connect_to(found.socket_name);
  EXPECT_TRUE(socket.ok()) << socket.status().to_string();
  return socket.ok() ? std::move(*socket) : UniqueFd();
}

void send_text(const UniqueFd& socket, const std::string& bytes, int descriptors) {
  std::vector<int> fds(static_cast<std::size_t>(descriptors), STDERR_FILENO);
  std::string text = bytes;
  iovec piece = {text.data(), text.size()};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  (void)::sendmsg(socket.get(), &message, MSG_NOSIGNAL);
}

class ShmStranger : public ::testing::Test {
 protected:
  void SetUp() override {
    Transport& shm = **transport_by_name("shm");
    for (const Rank rank : {0, 1}) {
      auto opened = shm.open({.rank = rank, .size = 3, .window_bytes = kBytes});
      ASSERT_TRUE(opened.ok()) << opened.status().to_string();
      endpoints_.push_back(std::move(*opened));
      descriptors_.push_back(endpoints_.back()->descriptor());
    }
  }

  Result<std::vector<std::unique_ptr<Link>>> connect(Rank rank, Duration timeout) {
    const std::vector<PeerDescriptor> peers = {{1 - rank, descriptors_[static_cast<std::size_t>(1 - rank)]}};
    return endpoints_[static_cast<std::size_t>(rank)]->connect(peers, Deadline::in(timeout));
  }

  void expect_peers_connect() {
    std::thread other([&] {
      const auto links = connect(1, std::chrono::seconds(60));
      EXPECT_TRUE(links.ok()) << links.status().to_string();
    });
    const auto links = connect(0, std::chrono::seconds(60));
    EXPECT_TRUE(links.ok()) << links.status().to_string();
    other.join();
  }

  Found rank0() const { return read(descriptors_[0]); }

  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::string> descriptors_;
};

// Returns whether the other side has closed the connection without a word.
bool was_dropped(const UniqueFd& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
}

TEST_F(ShmStranger, that_sends_garbage_is_dropped_and_the_peers_connect) {
  const std::vector<std::string> nonsense = {"x",
                                             std::string(87, 'a'),
                                             std::string(88, 'a'),
                                             std::string(89, 'a'),
                                             std::string(60000, 'a'),
                                             std::string(88, '\0')};
  std::vector<UniqueFd> strangers;
  for (const std::string& text : nonsense) {
    for (const int descriptors : {0, 1, 2, 5}) {
      strangers.push_back(connect_as_stranger(rank0()));
      send_text(strangers.back(), text, descriptors);
    }
  }
  const std::size_t before = open_descriptors();
  expect_peers_connect();
  for (const UniqueFd& stranger : strangers) EXPECT_TRUE(was_dropped(stranger));
  // Two endpoints of one process have connected and hold no descriptors; descriptors from strangers are closed.
  EXPECT_LE(open_descriptors(), before);
}

TEST_F(ShmStranger, that_sends_nothing_does_not_disturb_the_peers) {
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 600; ++i) strangers.push_back(connect_as_stranger(rank0()));
  for (int i = 0; i < 300; ++i) strangers[static_cast<std::size_t>(i)].reset();
  expect_peers_connect();
}

TEST_F(ShmStranger, without_valid_descriptors_gets_no_window) {
  const Found found = rank0();
  const std::string wrong(kCookieBytes, '0');
  const Cookie cookie = cookie_of(found.cookie);
  const std::vector<Hello> hellos = {
      {.rank = 1, .window_bytes = kBytes, .to = cookie_of(wrong), .from = cookie_of(read(descriptors_[1]).cookie)},
      {.rank = 1, .window_bytes = kBytes, .to = cookie, .from = cookie_of(wrong)},
      {.rank = 1, .window_bytes = kBytes + 1, .to = cookie, .from = cookie_of(read(descriptors_[1]).cookie)},
      {.rank = 0, .window_bytes = kBytes, .to = cookie, .from = cookie_of(read(descriptors_[1]).cookie)},
      {.rank = 3, .window_bytes = kBytes, .to = cookie, .from = cookie_of(wrong)},
      {.rank = -1, .window_bytes = kBytes, .to = cookie, .from = cookie_of(wrong)},
  };
  std::vector<UniqueFd> strangers;
  for (const Hello& hello : hellos) {
    strangers.push_back(connect_as_stranger(found));
    const auto sent = send_hello(strangers.back(), hello, STDERR_FILENO);
    ASSERT_TRUE(sent.ok());
    ASSERT_EQ(*sent, Exchange::kDone);
  }
  expect_peers_connect();
  for (const UniqueFd& stranger : strangers) EXPECT_TRUE(was_dropped(stranger));
}

TEST_F(ShmStranger, is_mentioned_when_a_real_peer_is_missing) {
  const UniqueFd stranger = connect_as_stranger(rank0());
  send_text(stranger, "hello?", 0);
  const Status status = connect(0, std::chrono::milliseconds(100)).status();
  EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("unexpected connection"));
  EXPECT_THAT(status.message(), HasSubstr("rank 1"));
}

// A peer that knows everything but hands over something that is not a window of that size.
TEST_F(ShmStranger, that_sends_no_window_is_an_error_that_names_the_rank) {
  const UniqueFd impostor = connect_as_stranger(rank0());
  const Hello hello{.rank = 1,
                    .window_bytes = kBytes,
                    .to = cookie_of(rank0().cookie),
                    .from = cookie_of(read(descriptors_[1]).cookie)};
  ASSERT_TRUE(send_hello(impostor, hello, STDERR_FILENO).ok());
  const Status status = connect(0, std::chrono::seconds(60)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.ranks(), std::vector<Rank>{1}) << status.to_string();
}

}  // namespace
}  // namespace accord::transport
