#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <thread>

#include "base/hash.hpp"
#include "comm/formation/connection.hpp"
#include "comm/formation/formation_point.hpp"
#include "comm/formation/handle.hpp"
#include "transport/tcp/call.hpp"

namespace accord::comm {
namespace {

using ::testing::HasSubstr;

Handle sample() {
  return {.host = hex64(7),
          .process = 1234,
          .key = hex64(8) + hex64(9),
          .port = 40000,
          .addresses = {"10.0.0.1", "fd00::1"}};
}

TEST(FormationHandle, survives_its_text) {
  const Result<Handle> read = parse_handle(to_text(sample()));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(*read, sample());
}

TEST(FormationHandle, other_texts_are_refused) {
  const std::string whole = to_text(sample());
  for (std::size_t length = 0; length <= whole.rfind('/') + 1; ++length)
    EXPECT_FALSE(parse_handle(whole.substr(0, length)).ok()) << length;
  for (const std::string& text :
       {std::string(), std::string("accord"), "x" + whole, whole + "/", whole + ",", whole + ",10.0.0", whole + "\n",
        std::string("accord1/") + hex64(7) + "/12/" + hex64(8) + hex64(9) + "/40000/10.0.0.1"}) {
    const Status status = parse_handle(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("is not a handle"));
  }
}

TEST(FormationHandle, texts_of_one_host_are_in_the_order_of_the_processes) {
  Handle earlier = sample(), later = sample(), elsewhere = sample();
  earlier.process = 999;
  later.process = 10000;
  elsewhere.host = hex64(8);
  EXPECT_LT(to_text(earlier), to_text(later));
  EXPECT_LT(to_text(later), to_text(elsewhere));
}

TEST(FormationPoint, has_one_handle_until_it_is_taken) {
  FormationPoint point;
  const Result<std::string> first = point.handle();
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(*point.handle(), *first);
  const auto own = [](FormationPoint& of) { return *parse_handle(*of.handle()); };
  const Handle used = own(point);
  ASSERT_TRUE(point.take("one", used, "here").ok());
  EXPECT_EQ(point.take("two", used, "here").status().code(), StatusCode::kWrongState);
  EXPECT_NE(*point.handle(), *first);
  const std::string second = *point.handle();
  const Status again = point.take("one", own(point), "here").status();
  EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(again.message(), HasSubstr("already used"));
  FormationPoint next;
  next.follow(point);
  ASSERT_TRUE(next.handle().ok());
  EXPECT_NE(*point.handle(), second) << "the others must not wait for a rank that was refused";
  EXPECT_FALSE(next.take("one", own(next), "here").ok());
  EXPECT_TRUE(next.take("two", own(next), "here").ok());
}

/// Returns true if a call to `handle` is refused.
bool is_refused(const Handle& handle) {
  transport::tcp::OutgoingCall call({"127.0.0.1"}, handle.port, "hello");
  const Deadline deadline = Deadline::in(std::chrono::seconds(10));
  while (!call.refused() && !deadline.passed()) {
    if (!call.advance().ok()) return false;
    if (call.fd() >= 0 && call.events() == POLLIN) return false;  // it waits for the answer: somebody listens
  }
  return call.refused();
}

/// A copy of this process that lives until end().
class ForkedChild {
 public:
  ForkedChild() {
    EXPECT_EQ(pipe(ends_.data()), 0);
    process_ = fork();
    if (process_ != 0) return;
    close(ends_[1]);
    char byte = 0;
    _exit(read(ends_[0], &byte, 1) == 0 ? 0 : 1);
  }
  /// Returns its status, or -1.
  int end() {
    for (const int end : ends_) close(end);
    int status = -1;
    return waitpid(process_, &status, 0) == process_ ? status : -1;
  }

 private:
  std::array<int, 2> ends_ = {};
  pid_t process_ = -1;
};

// The child of a fork does not keep the handle alive, so the others see the end of the process at once.
TEST(FormationPoint, a_forked_child_does_not_keep_the_handle) {
  auto point = std::make_unique<FormationPoint>();
  ASSERT_TRUE(point->handle().ok());
  const Handle handle = *parse_handle(*point->handle());
  EXPECT_FALSE(is_refused(handle));
  ForkedChild child;
  point.reset();
  const Deadline deadline = Deadline::in(std::chrono::seconds(10));
  while (!is_refused(handle) && !deadline.passed()) std::this_thread::yield();  // until the child has run
  EXPECT_FALSE(deadline.passed());
  EXPECT_EQ(child.end(), 0);
}

// The same for a call that has not been answered yet: the other side sees its end.
TEST(FormationCall, a_forked_child_does_not_keep_a_call) {
  Result<transport::tcp::Listener> listener = transport::tcp::listen_for_calls();
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  auto call =
      std::make_unique<transport::tcp::OutgoingCall>(std::vector<std::string>{"127.0.0.1"}, listener->port, "me");
  while (call->fd() < 0 || call->events() != POLLIN) ASSERT_TRUE(call->advance().ok());
  ForkedChild child;
  call.reset();
  Result<UniqueFd> accepted = transport::tcp::accept_call(listener->socket.get());
  ASSERT_TRUE(accepted.ok() && accepted->valid());
  std::array<char, 100> bytes;
  const Deadline deadline = Deadline::in(std::chrono::seconds(10));
  while (recv(accepted->get(), bytes.data(), bytes.size(), MSG_DONTWAIT) != 0 && !deadline.passed())
    std::this_thread::yield();
  EXPECT_FALSE(deadline.passed());
  EXPECT_EQ(child.end(), 0);
}

struct Pair {
  explicit Pair(std::size_t limit = 1 << 20) {
    std::array<int, 2> ends = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    here = std::make_unique<Connection>(UnsharedFd(UniqueFd(ends[0])), limit);
    there = std::make_unique<Connection>(UnsharedFd(UniqueFd(ends[1])), limit);
  }
  std::unique_ptr<Connection> here, there;
};

TEST(FormationConnection, messages_larger_than_the_socket_arrive_whole_and_in_order) {
  Pair pair(std::size_t{8} << 20);
  const std::string large(std::size_t{5} << 20, 'x');
  pair.here->send(std::make_shared<const std::string>(large));
  pair.here->send(std::make_shared<const std::string>(""));
  pair.here->send(std::make_shared<const std::string>("end"));
  std::vector<std::string> received;
  while (received.size() < 3) {
    pair.here->advance();
    pair.there->advance();
    while (std::optional<std::string> message = pair.there->next()) received.push_back(*std::move(message));
    ASSERT_FALSE(pair.there->has_ended());
  }
  EXPECT_TRUE(received[0] == large);
  EXPECT_EQ(received[1], "");
  EXPECT_EQ(received[2], "end");
  EXPECT_TRUE(pair.here->is_flushed());
}

TEST(FormationConnection, messages_before_the_end_can_be_read_and_one_that_is_too_large_ends_it) {
  Pair pair;
  pair.here->send(std::make_shared<const std::string>("last"));
  pair.here->advance();
  pair.here.reset();
  pair.there->advance();
  EXPECT_TRUE(pair.there->has_ended());
  EXPECT_EQ(pair.there->next(), "last");
  EXPECT_EQ(pair.there->next(), std::nullopt);

  Pair other(16);
  other.here->send(std::make_shared<const std::string>(std::string(17, 'x')));
  other.here->advance();
  other.there->advance();
  EXPECT_EQ(other.there->next(), std::nullopt);
  EXPECT_TRUE(other.there->has_ended());
}

}  // namespace
}  // namespace accord::comm
