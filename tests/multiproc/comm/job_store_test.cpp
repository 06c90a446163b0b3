// The store of the ranks of a launched job, with other programs at the ports around it. Each rank is a process, because
// a process keeps the store of its job. Each test has its own loopback address, on which all ports are free.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/fd.hpp"
#include "comm/environment.hpp"
#include "ranks/process_ranks.hpp"
#include "store/tcp_socket.hpp"

namespace accord::comm {
namespace {

using testing::ProcessRanks;

constexpr auto kLong = std::chrono::seconds(30);

class JobStore : public ::testing::Test {
 protected:
  JobPlace place(Rank rank, const std::string& job = "job") const {
    return {.rank = rank, .size = 2, .address = address_, .port = 30000, .job = job};
  }
  Result<std::shared_ptr<Store>> find(Rank rank, const std::string& job = "job") const {
    return job_store(place(rank, job), Deadline::in(kLong));
  }
  std::string url(int port) const { return store::tcp_url(address_, port); }

  /// Runs `body` in its own process and returns its exit code.
  static int in_a_process(const std::function<int()>& body) {
    ProcessRanks process(1, [&](Rank) { return body(); });
    return process.wait(0, Deadline::in(2 * kLong));
  }
  /// Starts the job's rank 0, which keeps its store until the test has ended. Returns once the store is available.
  std::unique_ptr<ProcessRanks> host(const std::string& job, int port) const {
    auto process = std::make_unique<ProcessRanks>(1, [&](Rank) {
      const auto store = find(0, job);
      if (store.ok() && (*store)->describe() == url(port)) pause();
      return 1;
    });
    const Result<std::shared_ptr<Store>> client = make_tcp_store(StoreRole::kClient, address_, port, kLong);
    EXPECT_TRUE(client.ok() && (*client)->get("accord/job", kLong).ok()) << "rank 0 of " << job << " did not arrive";
    return process;
  }

  /// Starts another program, which listens on the port and sends nothing until it is killed.
  std::unique_ptr<ProcessRanks> occupy(int port) const {
    auto process = std::make_unique<ProcessRanks>(1, [&](Rank) {
      const Result<UniqueFd> listening = store::listen_at(address_, port);
      if (listening.ok()) pause();
      return 1;
    });
    const store::Address address = store::resolve(address_, port).value().front();
    const Deadline deadline = Deadline::in(kLong);
    while (!store::connect_to(address, deadline, "").ok() && !deadline.passed()) std::this_thread::yield();
    EXPECT_FALSE(deadline.passed()) << "no process listens at port " << port;
    return process;
  }

  const std::string address_ = "127.77." + std::to_string(getpid() / 256 % 256) + "." + std::to_string(getpid() % 256);
};

TEST_F(JobStore, it_uses_the_first_free_port) {
  const auto host_of_other_job = host("other", 30000);
  const auto no_store = occupy(30001);
  const auto hosting = host("job", 30002);
  EXPECT_EQ(in_a_process([&] {
              const auto store = find(1);
              return store.ok() && (*store)->describe() == url(30002) ? 0 : 1;
            }),
            0);
}

TEST_F(JobStore, it_is_found_when_earlier_ports_are_free_again) {
  auto first = occupy(30000);
  auto second = occupy(30001);
  const auto hosting = host("job", 30002);
  first.reset();
  second.reset();
  EXPECT_EQ(in_a_process([&] { return find(1).ok() ? 0 : 1; }), 0);
}

TEST_F(JobStore, a_second_job_with_the_same_name_is_an_error) {
  const auto hosting = host("job", 30000);
  EXPECT_EQ(in_a_process([&] {
              const Status status = find(0).status();
              const bool named = status.message().find(url(30000)) != std::string::npos &&
                                 status.message().find("MASTER_PORT") != std::string::npos;
              return status.code() == StatusCode::kWrongState && named ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace accord::comm
