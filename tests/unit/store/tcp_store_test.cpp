// Properties of the TCP store alone: ports, names, connections, and strangers that connect.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <thread>

#include "accord/store.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "ranks/open_descriptors.hpp"
#include "store/tcp_protocol.hpp"
#include "store/tcp_socket.hpp"

namespace accord {
namespace {

using ::testing::HasSubstr;
using testing::open_descriptors;
using ::testing::StartsWith;
using namespace std::chrono_literals;

constexpr Duration kLong = 60s;

std::shared_ptr<Store> host_at(const std::string& host, int port = 0) {
  Result<std::shared_ptr<Store>> store = make_tcp_store(StoreRole::kHost, host, port, kLong);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? *store : nullptr;
}

int port_of(const Store& store) {
  const std::string url = store.describe();
  return std::stoi(url.substr(url.rfind(':') + 1));
}

Result<std::shared_ptr<Store>> client_of(const Store& host, const std::string& name = "127.0.0.1") {
  return make_tcp_store(StoreRole::kClient, name, port_of(host), kLong);
}

bool ipv6_works() { return store::listen_at("::1", 0).ok(); }

// Opens a connection on which the test itself speaks.
UniqueFd raw_connection(const Store& host) {
  const auto addresses = store::resolve("127.0.0.1", port_of(host)).value();
  Result<UniqueFd> fd = store::connect_to(addresses[0], Deadline::in(kLong), "raw");
  EXPECT_TRUE(fd.ok());
  return std::move(fd).value();
}

void send_text(const UniqueFd& fd, std::string_view text) {
  (void)write_all(fd.get(), std::as_bytes(std::span(text)), Deadline::in(kLong), "raw");
}

// Returns whether the other side closes the connection, whatever it sends before.
bool gets_dropped(const UniqueFd& fd) {
  char bytes[4096];
  for (;;) {
    pollfd entry = {fd.get(), POLLIN, 0};
    if (poll(&entry, 1, 30'000) <= 0) return false;
    if (recv(fd.get(), bytes, sizeof bytes, 0) <= 0) return true;
  }
}

std::string hello() {
  const auto bytes = store::encode_hello(store::Side::kClient);
  return {bytes.data(), bytes.size()};
}

std::string header(store::RequestHeader header) {
  const auto bytes = store::encode(header);
  return {bytes.data(), bytes.size()};
}

TEST(TcpStore, port_0_selects_a_free_port_and_describe_reports_it) {
  const auto first = host_at("127.0.0.1");
  const auto second = host_at("127.0.0.1");
  EXPECT_THAT(first->describe(), StartsWith("tcp://127.0.0.1:"));
  EXPECT_GT(port_of(*first), 0);
  EXPECT_NE(port_of(*first), port_of(*second));
  ASSERT_TRUE(client_of(*first).value()->set("key", "first").ok());
  EXPECT_EQ(*first->get("key", kLong), "first");
  EXPECT_FALSE(second->get("key", Duration::zero()).ok());
}

TEST(TcpStore, is_reached_by_name_by_ipv4_and_by_ipv6) {
  const auto by_name = host_at("localhost");
  EXPECT_TRUE(client_of(*by_name, "localhost").ok());
  const auto everywhere = host_at("0.0.0.0");
  EXPECT_TRUE(client_of(*everywhere, "127.0.0.1").ok());
  EXPECT_TRUE(client_of(*everywhere, "localhost").ok());
  if (!ipv6_works()) GTEST_SKIP() << "no IPv6 on this machine; the rest was tested";
  EXPECT_TRUE(client_of(*everywhere, "::1").ok());
  const auto ipv6 = host_at("::1");
  EXPECT_THAT(ipv6->describe(), StartsWith("tcp://[::1]:"));
  EXPECT_TRUE(client_of(*ipv6, "::1").ok());
  EXPECT_TRUE(client_of(*ipv6, "[::1]").ok());
}

TEST(TcpStore, is_hosted_under_the_name_of_this_machine) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const auto host = host_at(name);
  EXPECT_TRUE(client_of(*host).ok());
}

TEST(TcpStore, a_port_in_use_is_an_error_that_names_it) {
  const auto host = host_at("127.0.0.1");
  const Status status = make_tcp_store(StoreRole::kHost, "127.0.0.1", port_of(*host), kLong).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("port " + std::to_string(port_of(*host)) + " is in use"));
  EXPECT_FALSE(make_tcp_store(StoreRole::kHost, "0.0.0.0", port_of(*host), kLong).ok());
}

TEST(TcpStore, a_port_is_free_again_after_its_host_closes) {
  auto host = host_at("127.0.0.1");
  const int port = port_of(*host);
  const auto client = client_of(*host).value();
  ASSERT_TRUE(client->set("key", "old").ok());
  host.reset();
  host = host_at("127.0.0.1", port);
  ASSERT_NE(host, nullptr);
  EXPECT_FALSE(host->get("key", Duration::zero()).ok());
}

TEST(TcpStore, invalid_ports_and_hosts_are_rejected_immediately) {
  for (const int port : {-1, 65536}) {
    EXPECT_EQ(make_tcp_store(StoreRole::kHost, "127.0.0.1", port, kLong).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(make_tcp_store(StoreRole::kClient, "127.0.0.1", 0, kLong).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(make_tcp_store(StoreRole::kClient, "", 1234, kLong).status().code(), StatusCode::kInvalidArgument);
}

TEST(TcpStore, a_client_without_a_host_times_out_and_names_host_and_port) {
  const int port = store::port_of(store::listen_at("127.0.0.1", 0).value().get()).value();  // free again by now
  const auto begin = Clock::now();
  const Status status = make_tcp_store(StoreRole::kClient, "127.0.0.1", port, 300ms).status();
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("tcp://127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(status.message(), HasSubstr("Connection refused"));
  EXPECT_GE(Clock::now() - begin, 300ms);
  EXPECT_LT(Clock::now() - begin, 20s);
}

TEST(TcpStore, a_host_name_without_an_address_is_an_immediate_error) {
  for (const StoreRole role : {StoreRole::kClient, StoreRole::kHost}) {
    const auto begin = Clock::now();
    const Status status = make_tcp_store(role, "no-such-host.invalid", 1234, kLong).status();
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("host \"no-such-host.invalid\" has no address"));
    EXPECT_LT(Clock::now() - begin, 20s);
  }
}

TEST(TcpStore, is_not_hosted_under_another_machines_address) {
  const Status status = make_tcp_store(StoreRole::kHost, "192.0.2.1", 0, kLong).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("\"192.0.2.1\" is not an address of this machine"));
}

TEST(TcpStore, a_client_that_starts_before_its_host_waits_for_it) {
  const int port = store::port_of(store::listen_at("127.0.0.1", 0).value().get()).value();
  Result<std::shared_ptr<Store>> client = Status(StatusCode::kInternal, "not run");
  std::thread early([&] { client = make_tcp_store(StoreRole::kClient, "127.0.0.1", port, kLong); });
  EXPECT_EQ(make_tcp_store(StoreRole::kClient, "127.0.0.1", port, 50ms).status().code(), StatusCode::kTimeout);
  const auto host = host_at("127.0.0.1", port);
  early.join();
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  EXPECT_TRUE((*client)->set("key", "value").ok());
}

TEST(TcpStore, waiting_clients_are_notified_immediately_when_their_host_closes) {
  auto host = host_at("127.0.0.1");
  const auto client = client_of(*host).value();
  Status waited;
  std::thread waiting([&] {
    EXPECT_TRUE(client->set("waiting", "").ok());
    waited = client->get("never", kLong).status();
  });
  ASSERT_TRUE(host->get("waiting", kLong).ok());
  const auto begin = Clock::now();
  host.reset();
  waiting.join();
  EXPECT_LT(Clock::now() - begin, 10s);
  EXPECT_EQ(waited.code(), StatusCode::kPeerLost) << waited.to_string();
  EXPECT_THAT(waited.message(), HasSubstr("never"));
  EXPECT_EQ(client->set("key", "value").code(), StatusCode::kPeerLost);
  EXPECT_EQ(client->add("key", 1).status().code(), StatusCode::kPeerLost);
}

TEST(TcpStore, garbage_disconnects_only_its_sender) {
  const auto host = host_at("127.0.0.1");
  const auto client = client_of(*host).value();
  std::thread waiting([&] { EXPECT_EQ(*client->get("late", kLong), "here"); });
  const std::string good_set = header({.operation = store::Operation::kSet, .key_bytes = 1, .value_bytes = 1}) + "kv";
  const std::string garbage[] = {
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      std::string(100'000, '\xff'),
      hello() + "this is not a request, though long enough",
      hello() + std::string(24, '\0'),
      hello() + header({.operation = store::Operation::kSet, .key_bytes = 0xffffffff, .value_bytes = 0xffffffff}),
      hello() + header({.operation = store::Operation::kSet, .key_bytes = 1, .value_bytes = (8u << 20) + 1}),
      hello() + header({.operation = store::Operation::kGet, .key_bytes = 1, .value_bytes = 1}) + "kv",
      hello() + good_set + good_set,  // two at once, which our clients never send
  };
  for (const std::string& bytes : garbage) {
    const UniqueFd stranger = raw_connection(*host);
    send_text(stranger, bytes);
    EXPECT_TRUE(gets_dropped(stranger)) << bytes.substr(0, 60);
  }
  EXPECT_TRUE(host->set("late", "here").ok());
  waiting.join();
}

TEST(TcpStore, random_bytes_after_the_hello_never_disturb_the_host) {
  const auto host = host_at("127.0.0.1");
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    const UniqueFd stranger = raw_connection(*host);
    std::string bytes = random() % 4 == 0 ? "" : hello();
    for (std::size_t n = random() % 200; n > 0; --n) {
      bytes += static_cast<char>(random() % 3 == 0 ? random() : random() % 5);
    }
    send_text(stranger, bytes);
  }
  EXPECT_TRUE(client_of(*host).value()->set("key", "value").ok());
  EXPECT_EQ(*host->get("key", kLong), "value");
}

TEST(TcpStore, a_request_received_byte_by_byte_is_parsed_and_its_answer_has_the_documented_layout) {
  const auto host = host_at("127.0.0.1");
  const UniqueFd slow = raw_connection(*host);
  const std::string message =
      hello() + header({.operation = store::Operation::kAdd, .key_bytes = 5, .number = 258}) + "count";
  for (const char byte : message) send_text(slow, {&byte, 1});
  std::string answer(32, '\0');
  ASSERT_TRUE(read_all(slow.get(), std::as_writable_bytes(std::span(answer)), Deadline::in(kLong), "raw").ok());
  EXPECT_EQ(answer.substr(0, 12), std::string("ACCSTOR\n\x01\0\0\0", 12));
  EXPECT_EQ(answer.substr(16), std::string("\0\0\0\0"
                                           "\0\0\0\0"
                                           "\x02\x01\0\0\0\0\0\0",
                                           16));
  EXPECT_EQ(*host->get("count", kLong), "258");
}

TEST(TcpStore, a_client_of_another_version_receives_the_hosts_version_and_is_disconnected) {
  const auto host = host_at("127.0.0.1");
  const UniqueFd other = raw_connection(*host);
  std::string greeting = hello();
  greeting[8] = 99;
  send_text(other, greeting);
  std::string answer(16, '\0');
  ASSERT_TRUE(read_all(other.get(), std::as_writable_bytes(std::span(answer)), Deadline::in(kLong), "raw").ok());
  EXPECT_TRUE(answer.starts_with("ACCSTOR\n"));
  EXPECT_TRUE(gets_dropped(other));
}

TEST(TcpStore, a_host_of_another_version_is_an_error_that_does_not_wait_for_the_timeout) {
  const UniqueFd listening = store::listen_at("127.0.0.1", 0).value();
  const int port = store::port_of(listening.get()).value();
  std::thread other_version([&] {
    ASSERT_TRUE(wait_readable(listening.get(), Deadline::in(kLong), "").ok());
    const UniqueFd client(accept(listening.get(), nullptr, nullptr));
    send_text(client, std::string("ACCSTOR\n\x07\0\0\0\0\0\0\0", 16));
    EXPECT_TRUE(gets_dropped(client));
  });
  const Status status = make_tcp_store(StoreRole::kClient, "127.0.0.1", port, kLong).status();
  other_version.join();
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_THAT(status.message(), HasSubstr("version 7"));
}

TEST(TcpStore, another_server_at_the_port_is_distinguished_from_a_store) {
  const UniqueFd listening = store::listen_at("127.0.0.1", 0).value();
  const int port = store::port_of(listening.get()).value();
  std::atomic<bool> done{false};
  std::thread web_server([&] {
    while (!done) {
      if (!wait_readable(listening.get(), Deadline::in(10ms), "").ok()) continue;
      const UniqueFd client(accept(listening.get(), nullptr, nullptr));
      send_text(client, "HTTP/1.1 400 Bad Request\r\n\r\n");
      (void)gets_dropped(client);
    }
  });
  const Status status = make_tcp_store(StoreRole::kClient, "127.0.0.1", port, 200ms).status();
  done = true;
  web_server.join();
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("it does not use accord's store protocol: it begins with \"HTTP/1.1"));
}

TEST(TcpStore, leaves_no_descriptor_open) {
  const std::size_t before = open_descriptors();
  {
    const auto host = host_at("127.0.0.1");
    const auto client = client_of(*host).value();
    std::vector<std::thread> threads;
    for (int i = 0; i < 20; ++i) {
      threads.emplace_back([&] { EXPECT_FALSE(client->get("never", 50ms).ok()); });
    }
    for (std::thread& thread : threads) thread.join();
    raw_connection(*host);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(TcpStore, a_host_without_free_descriptors_serves_its_clients_and_accepts_new_ones_later) {
  const auto host = host_at("127.0.0.1");
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int lowest_free = UniqueFd(dup(0)).get();
  const rlimit one_more = {static_cast<rlim_t>(lowest_free) + 1, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  const UniqueFd newcomer = raw_connection(*host);  // has the last descriptor; the host has none to accept it with
  EXPECT_TRUE(host->set("still", "served").ok());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  send_text(newcomer, hello());
  std::string answer(16, '\0');
  EXPECT_TRUE(read_all(newcomer.get(), std::as_writable_bytes(std::span(answer)), Deadline::in(kLong), "raw").ok());
}

}  // namespace
}  // namespace accord
