// The TCP store between real processes, some of which are killed. The test's own process is a client and has no
// threads.
#include <gmock/gmock.h>

#include <set>

#include "accord/store.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "multiproc/store/child.hpp"

namespace accord {
namespace {

using testing::HasSubstr;
using testing_support::Child;
using testing_support::kLong;
using namespace std::chrono_literals;

/// "At once", on a machine that may be busy; far below kLong.
constexpr Duration kSoon = 10s;

std::shared_ptr<Store> client_at(int port) {
  return make_tcp_store(StoreRole::kClient, "127.0.0.1", port, kLong).value();
}

/// A process that hosts a store until it is killed.
class Host {
 public:
  Host()
      : child_(Child::start([](const Child::WriteLine& write_line) {
          const auto store = make_tcp_store(StoreRole::kHost, "127.0.0.1", 0, kLong);
          if (!store.ok()) return 1;
          write_line((*store)->describe());
          pause();
          return 0;
        })) {
    const std::string url = child_.read_line();
    port_ = std::stoi(url.substr(url.rfind(':') + 1));
  }
  int port() const { return port_; }
  Child& child() { return child_; }

 private:
  Child child_;
  int port_ = 0;
};

TEST(TcpStoreProcesses, concurrent_adds_of_sixteen_clients_give_every_sum_once) {
  constexpr int kClients = 16;
  constexpr int kAdds = 100;
  Host host;
  std::vector<Child> children;
  for (int i = 0; i < kClients; ++i) {
    children.push_back(Child::start([&](const Child::WriteLine& write_line) {
      const auto store = client_at(host.port());
      if (!store->add("ready", 1).ok() || !store->get("go", kLong).ok()) return 1;
      std::string sums;
      for (int n = 0; n < kAdds; ++n) sums += std::to_string(store->add("count", 1).value()) + ",";
      write_line(sums);
      return 0;
    }));
  }
  const auto store = client_at(host.port());
  ASSERT_TRUE(store->set("go", "").ok());
  std::multiset<std::int64_t> sums;
  for (Child& child : children) {
    const std::string line = child.read_line();
    for (const std::string_view sum : split_text(line, ',')) {
      if (!sum.empty()) sums.insert(parse_integer(sum, "sum").value());
    }
    EXPECT_EQ(child.wait(), 0);
  }
  std::multiset<std::int64_t> expected;
  for (int sum = 1; sum <= kClients * kAdds; ++sum) expected.insert(sum);
  EXPECT_EQ(sums, expected);
  EXPECT_EQ(*store->get("count", kLong), "1600");
}

TEST(TcpStoreProcesses, a_killed_client_does_not_disturb_others) {
  Host host;
  std::vector<Child> victims;
  // Killed while they wait, while they send a large value, and while they receive one.
  for (int i = 0; i < 6; ++i) {
    victims.push_back(Child::start([&, i](const Child::WriteLine& write_line) {
      const auto store = client_at(host.port());
      const std::string large(8 << 20, 'x');
      if (i == 0 && !store->set("large", large).ok()) return 1;
      write_line("running");
      if (i % 3 == 0) return store->get("never", kLong).ok() ? 1 : 0;
      for (;;) {
        if (i % 3 == 1 && !store->set("large", large).ok()) return 1;
        if (i % 3 == 2 && !store->get("large", kLong).ok()) return 1;
      }
    }));
  }
  Child witness = Child::start([&](const Child::WriteLine& write_line) {
    const auto store = client_at(host.port());
    write_line("running");
    return store->get("end", kLong).ok() ? 0 : 1;
  });
  for (Child& victim : victims) EXPECT_EQ(victim.read_line(), "running");
  EXPECT_EQ(witness.read_line(), "running");
  const auto store = client_at(host.port());
  for (Child& victim : victims) {
    victim.send(SIGKILL);
    EXPECT_EQ(victim.wait(), -SIGKILL);
    EXPECT_TRUE(store->set("key", "value").ok());
    EXPECT_TRUE(store->add("count", 1).ok());
  }
  EXPECT_TRUE(store->set("never", "the dead waited for this").ok());
  EXPECT_EQ(*store->get("large", kLong), std::string(8 << 20, 'x'));
  EXPECT_TRUE(store->set("end", "").ok());
  EXPECT_EQ(witness.wait(), 0);
}

TEST(TcpStoreProcesses, waiting_clients_get_peer_lost_immediately_when_the_host_is_killed) {
  Host host;
  std::vector<Child> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(Child::start([&](const Child::WriteLine& write_line) {
      const auto store = client_at(host.port());
      if (!store->add("waiting", 1).ok()) return 1;
      const Status status = store->get("never", kLong).status();
      write_line(status.to_string());
      return status.code() == StatusCode::kPeerLost ? 0 : 2;
    }));
  }
  {
    const auto store = client_at(host.port());
    const Deadline deadline = Deadline::in(kLong);
    while (store->add("waiting", 0).value() < 4 && !deadline.passed()) usleep(1000);
  }
  const auto begin = Clock::now();
  host.child().send(SIGKILL);
  for (Child& child : waiting) {
    EXPECT_THAT(child.read_line(), HasSubstr("never"));
    EXPECT_EQ(child.wait(), 0);
  }
  EXPECT_LT(Clock::now() - begin, kSoon);
}

TEST(TcpStoreProcesses, every_call_fails_with_peer_lost_after_the_host_is_killed) {
  Host host;
  const auto store = client_at(host.port());
  ASSERT_TRUE(store->set("key", "value").ok());
  host.child().send(SIGKILL);
  host.child().wait();
  const auto begin = Clock::now();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(store->set("key", "value").code(), StatusCode::kPeerLost);
    EXPECT_EQ(store->get("key", kLong).status().code(), StatusCode::kPeerLost);
    EXPECT_EQ(store->add("key", 1).status().code(), StatusCode::kPeerLost);
    EXPECT_EQ(store->erase("key").code(), StatusCode::kPeerLost);
  }
  EXPECT_LT(Clock::now() - begin, kSoon);
}

TEST(TcpStoreProcesses, a_stopped_host_delays_a_get_by_at_most_five_seconds_beyond_its_timeout) {
  Host host;
  const auto store = client_at(host.port());
  ASSERT_TRUE(store->set("key", "value").ok());
  host.child().stop();
  const auto begin = Clock::now();
  const Status status = store->get("key", 100ms).status();
  const auto waited = Clock::now() - begin;
  EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
  EXPECT_GE(waited, 100ms);
  EXPECT_LT(waited, 5100ms + kSoon);
  host.child().send(SIGCONT);
  EXPECT_EQ(*store->get("key", kLong), "value");
}

TEST(TcpStoreProcesses, a_get_times_out_between_processes_and_the_store_stays_usable) {
  Host host;
  const auto store = client_at(host.port());
  const auto begin = Clock::now();
  EXPECT_EQ(store->get("never", 200ms).status().code(), StatusCode::kTimeout);
  EXPECT_GE(Clock::now() - begin, 200ms);
  EXPECT_TRUE(store->set("never", "now").ok());
  EXPECT_EQ(*store->get("never", kLong), "now");
}

TEST(TcpStoreProcesses, a_fork_of_a_client_has_its_own_connections) {
  Host host;
  const auto store = client_at(host.port());
  ASSERT_TRUE(store->set("key", "value").ok());
  std::vector<Child> forks;
  for (int i = 0; i < 4; ++i) {
    forks.push_back(Child::start([&](const Child::WriteLine&) {
      for (int n = 0; n < 200; ++n) {
        const std::string key = "key" + std::to_string(i);
        if (!store->set(key, std::to_string(n)).ok() || *store->get(key, kLong) != std::to_string(n)) return 1;
      }
      return 0;
    }));
  }
  for (int n = 0; n < 200; ++n) EXPECT_EQ(*store->get("key", kLong), "value");
  for (Child& fork : forks) EXPECT_EQ(fork.wait(), 0);
}

TEST(TcpStoreProcesses, a_fork_of_the_host_may_end_in_any_way) {
  Child host = Child::start([](const Child::WriteLine& write_line) {
    auto store = make_tcp_store(StoreRole::kHost, "127.0.0.1", 0, kLong).value();
    Child fork = Child::start([&](const Child::WriteLine&) {
      store.reset();
      return 7;
    });
    if (fork.wait() != 7) return 1;
    write_line(store->set("key", "value").ok() && *store->get("key", kLong) == "value" ? "works" : "broken");
    return 0;
  });
  EXPECT_EQ(host.read_line(), "works");
  EXPECT_EQ(host.wait(), 0);
}

}  // namespace
}  // namespace accord
