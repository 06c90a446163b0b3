// Processes that are killed at any moment, and replaced: the others go on, and nothing of the work is lost.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <random>
#include <string_view>
#include <thread>

#include "accord/elastic.hpp"
#include "ranks/process_ranks.hpp"

namespace accord {
namespace {

using testing::ProcessRanks;
using testing::TemporaryDirectory;

class ElasticProcesses : public ::testing::Test {
 protected:
  static constexpr int kFine = 0, kNoGroup = 10, kWrongState = 11, kBadCall = 12;
  static constexpr auto kLong = std::chrono::seconds(120);

  /// Shared memory in which the processes report to the test.
  struct Board {
    std::atomic<std::int64_t> steps = 0;
    std::atomic<bool> is_enough = false;
    std::atomic<int> port = 0;  // of the store over TCP; 0: the processes use files
  };

  ElasticProcesses()
      : board_(new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board) {}
  ~ElasticProcesses() override { munmap(board_, sizeof(Board)); }

  ElasticOptions options(int min_ranks, int max_ranks) const {
    return {.min_ranks = min_ranks,
            .max_ranks = max_ranks,
            .last_call = std::chrono::seconds(20),
            .form_timeout = std::chrono::seconds(60),
            .communicator = {.timeout = std::chrono::seconds(60)}};
  }

  /// The work: in each step the ranks add up the numbers below kItems, each rank its share, times the step. The sum of
  /// all steps is known.
  static constexpr int kItems = 12;
  static std::int64_t state_after(std::int64_t steps) { return kItems * (kItems - 1) / 2 * (steps * (steps + 1) / 2); }

  Result<std::shared_ptr<Store>> open_store() const {
    if (board_->port == 0) return make_file_store(directory_.path());
    return make_tcp_store(StoreRole::kClient, "127.0.0.1", board_->port, kLong);
  }

  /// Serves a store over TCP until it is killed.
  int serve_store() const {
    const Result<std::shared_ptr<Store>> store = make_tcp_store(StoreRole::kHost, "127.0.0.1", 0, kLong);
    if (!store.ok()) return kBadCall;
    const std::string url = (*store)->describe();
    board_->port = std::stoi(url.substr(url.rfind(':') + 1));
    while (true) pause();
  }

  /// A process's life: takes part in groups until there was enough work.
  int work(int who, const ElasticOptions& elastic_options) const {
    Result<std::shared_ptr<Store>> store = open_store();
    if (!store.ok()) return kBadCall;
    Result<ElasticGroup> elastic = ElasticGroup::open(*store, elastic_options);
    if (!elastic.ok()) return kBadCall;
    std::int64_t steps = -1, state = 0;
    while (true) {
      Result<std::optional<Communicator>> formed = elastic->form();
      if (!formed.ok()) {
        std::fprintf(stderr, "process %d: %s\n", who, formed.status().to_string().c_str());
        return kNoGroup;
      }
      if (!*formed) return kFine;
      Communicator communicator = **formed;
      const Result<Rank> source = elastic->most_advanced(steps);
      if (!source.ok()) continue;
      std::int64_t values[2] = {steps, state};
      if (!communicator.broadcast(Buffer{values, 2, DType::kInt64}, *source).ok()) continue;
      if (values[0] > steps) {
        steps = values[0];
        state = values[1];
      }
      steps = std::max<std::int64_t>(steps, 0);
      if (state != state_after(steps)) return kWrongState;
      while (true) {
        std::int64_t share = 0, sum = 0;
        for (int item = communicator.rank(); item < kItems; item += communicator.size()) share += item * (steps + 1);
        if (!communicator
                 .all_reduce(ConstBuffer(&share, 1, DType::kInt64), Buffer{&sum, 1, DType::kInt64}, ReduceOp::kSum)
                 .ok())
          break;
        state += sum;
        ++steps;
        if (state != state_after(steps)) return kWrongState;
        board_->steps = steps;
        const Result<bool> wait = elastic->others_wait();
        if (!wait.ok() || *wait) break;
        std::uint8_t enough = board_->is_enough ? 1 : 0;
        if (!communicator.broadcast(Buffer{&enough, 1, DType::kUInt8}, 0).ok()) break;
        if (enough == 1) return elastic->finish().ok() ? kFine : kBadCall;
      }
    }
  }

  static void await(const std::function<bool()>& is_so, std::string_view what) {
    for (const Deadline deadline = Deadline::in(kLong); !is_so();) {
      ASSERT_FALSE(deadline.passed()) << "not within " << kLong.count() << " s: " << what;
      std::this_thread::yield();
    }
  }
  void await_steps(std::int64_t more) const {
    const std::int64_t wanted = board_->steps + more;
    await([&] { return board_->steps >= wanted; }, "a step ends");
  }

  const TemporaryDirectory directory_;
  Board* const board_;
};

TEST_F(ElasticProcesses, KilledOnesAreReplacedAndNothingIsLost) {
  constexpr int kRanks = 4, kKills = 40;
  std::minstd_rand random(7);
  std::vector<std::unique_ptr<ProcessRanks>> processes;
  const auto start = [&] {
    const int who = static_cast<int>(processes.size());
    processes.push_back(std::make_unique<ProcessRanks>(1, [&, who](Rank) { return work(who, options(1, kRanks)); }));
  };
  std::vector<int> alive;
  for (int i = 0; i < kRanks; ++i) {
    start();
    alive.push_back(i);
  }
  for (int kill = 0; kill < kKills; ++kill) {
    // Now in a step, now just when a group is formed after the kill before.
    await_steps(random() % 3 == 0 ? 1 : 20);
    for (auto pause = random() % 20'000; pause > 0; --pause) std::this_thread::yield();
    const std::size_t victim = random() % alive.size();
    processes[static_cast<std::size_t>(alive[victim])]->kill(0, SIGKILL);
    alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(victim));
    if (random() % 4 == 0 && alive.size() > 2) {  // two at once
      processes[static_cast<std::size_t>(alive.back())]->kill(0, SIGKILL);
      alive.pop_back();
    }
    while (alive.size() < kRanks) {
      alive.push_back(static_cast<int>(processes.size()));
      start();
    }
  }
  await_steps(20);
  board_->is_enough = true;
  for (const int who : alive)
    EXPECT_EQ(processes[static_cast<std::size_t>(who)]->wait(0, Deadline::in(kLong)), kFine) << "process " << who;
}

TEST_F(ElasticProcesses, AStoppedRankIsLeftOutAndComesBack) {
  ElasticOptions impatient = options(1, 3);
  impatient.form_timeout = std::chrono::seconds(2);
  impatient.communicator.timeout = std::chrono::seconds(2);
  ProcessRanks processes(3, [&](Rank who) { return work(who, impatient); });
  await_steps(20);
  processes.kill(1, SIGSTOP);
  await_steps(20);
  processes.kill(1, SIGCONT);
  await_steps(20);
  board_->is_enough = true;
  EXPECT_EQ(processes.wait_all(Deadline::in(kLong)), std::vector<int>(3, kFine));
}

TEST_F(ElasticProcesses, AStoppedHostOfTheStoreIsWaitedFor) {
  ProcessRanks host(1, [&](Rank) { return serve_store(); });
  await([&] { return board_->port != 0; }, "the store is served");
  const auto stop_host = [&] {
    host.kill(0, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(7));  // longer than the answer to get() is waited for
    host.kill(0, SIGCONT);
  };
  ProcessRanks first(1, [&](Rank) { return work(0, options(2, 2)); });
  Result<std::shared_ptr<Store>> store = open_store();
  ASSERT_TRUE(store.ok());
  await([&] { return *(*store)->add("accord/elastic/elastic/ids", 0) == 1; }, "the first process takes part");
  stop_host();
  ProcessRanks second(1, [&](Rank) { return work(1, options(2, 2)); });
  await_steps(20);
  stop_host();
  await_steps(20);
  board_->is_enough = true;
  EXPECT_EQ(first.wait(0, Deadline::in(kLong)), kFine);
  EXPECT_EQ(second.wait(0, Deadline::in(kLong)), kFine);
  host.kill(0, SIGKILL);
}

}  // namespace
}  // namespace accord
