// A program's own kernels between processes: they put, signal and wait through memory that each process has opened.
#include "accord/peer_window.hpp"

#include <utility>

#include "device/sample_kernels.hpp"
#include "multiproc/comm/device_processes.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using testing::OnDevice;
using testing::PassOn;

constexpr std::size_t kCount = 1001;

class PeerWindowProcesses : public testing::DeviceProcesses {
 protected:
  /// A rank's part of a ring that passes on `kCount` values.
  struct Ring {
    Ring(Communicator& comm, const OnDevice& where)
        : on(where),
          size(comm.size()),
          next((comm.rank() + 1) % size),
          before((comm.rank() + size - 1) % size),
          window(PeerWindow::create(comm, static_cast<std::size_t>(size) * kCount * sizeof(std::uint64_t), on.device)
                     .value()),
          values(on, std::vector<std::uint64_t>(kCount, 1000 * static_cast<std::uint64_t>(comm.rank())),
                 DType::kUInt64),
          ended(on, std::vector<std::uint64_t>(1), DType::kUInt64) {}
    Status pass_on(std::uint64_t rounds) {
      const PassOn kernel{.to = window.channel(next),
                          .from = window.channel(before),
                          .values = static_cast<std::uint64_t*>(values.buffer().data),
                          .count = kCount,
                          .first = std::exchange(done, done + rounds),
                          .rounds = rounds,
                          .slots = static_cast<std::uint64_t>(size),
                          .ended = static_cast<std::uint64_t*>(ended.buffer().data)};
      return device::launch(on.runtime, kernel, {.blocks = 1, .threads = PassOn::kThreads}, on.device, on.stream);
    }

    const OnDevice on;
    const int size;
    const Rank next, before;
    std::uint64_t done = 0;
    PeerWindow window;
    DeviceArray values, ended;
  };
};

TEST_F(PeerWindowProcesses, data_put_by_kernels_is_visible_after_the_signal) {
  constexpr std::uint64_t kRounds = 23, kLaunches = 3;
  for (const int size : {2, 3, 4}) {
    on_ranks(size, {.timeout = std::chrono::seconds(60)}, [](Communicator& comm, const OnDevice& on) {
      Ring ring(comm, on);
      for (std::uint64_t launch = 0; launch < kLaunches; ++launch) EXPECT_TRUE(ring.pass_on(kRounds).ok());
      constexpr std::uint64_t kAll = kRounds * kLaunches;
      const auto from = static_cast<std::uint64_t>(comm.rank() + 4 * comm.size() * static_cast<int>(kAll)) - kAll;
      const std::uint64_t expected = 1000 * (from % static_cast<std::uint64_t>(comm.size())) + kAll;
      EXPECT_EQ(ring.values.values<std::uint64_t>(), std::vector<std::uint64_t>(kCount, expected));
      EXPECT_EQ(ring.ended.values<std::uint64_t>()[0], 0U);
      EXPECT_TRUE(comm.barrier().ok());
    });
  }
}

TEST_F(PeerWindowProcesses, a_rank_killed_while_kernels_wait_for_it_is_named_and_they_end_on_request) {
  const auto exits = exits_of(3, {.timeout = std::chrono::seconds(30)}, 2, [&](Communicator& comm, const OnDevice& on) {
    Ring ring(comm, on);
    EXPECT_TRUE(ring.pass_on(10).ok());
    on.synchronize();
    if (comm.rank() != 2) {
      EXPECT_TRUE(ring.pass_on(1000000000).ok());
    }
    ++board_->ready;
    if (comm.rank() == 2) pause();
    const Status status = comm.barrier();
    ring.window.end_waits();
    const int seen = judge(status, 2, on);
    EXPECT_EQ(ring.ended.values<std::uint64_t>()[0], 1U);
    // The window may be freed once no kernel of another rank uses it.
    Result<Communicator> rest = comm.shrink("rest");
    EXPECT_TRUE(rest.ok() && rest->barrier().ok());
    return seen;
  });
  EXPECT_EQ(exits, (std::vector<int>{testing::kNamedTheDead, testing::kNamedTheDead, 128 + SIGKILL}));
}

}  // namespace
}  // namespace accord
