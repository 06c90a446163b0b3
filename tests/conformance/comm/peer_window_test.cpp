// Memory of GPUs for kernels of a program's own. Here streams over host memory do the work of those kernels.
#include "accord/peer_window.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "conformance/comm/host_devices.hpp"

namespace accord {
namespace {

using ::testing::HasSubstr;
using testing::OnDevice;

class PeerWindows : public testing::HostDevices {};

TEST_F(PeerWindows, data_put_by_kernels_is_visible_after_the_signal) {
  constexpr int kRounds = 300;
  constexpr std::size_t kBytes = 1001;
  on_ranks(3, [](Communicator& comm, const OnDevice& on) {
    const PeerWindow window = PeerWindow::create(comm, 3 * kBytes, on.device).value();
    EXPECT_EQ(window.bytes(), 3 * kBytes);
    EXPECT_EQ(window.device(), on.device);
    const Rank next = (comm.rank() + 1) % 3, before = (comm.rank() + 2) % 3;
    const DeviceChannelHandle to = window.channel(next), from = window.channel(before);
    EXPECT_EQ(to.remote, window.memory(next));
    int wrong = 0;
    // A token travels around the ring: each rank adds one to the token that it received and passes it on.
    ASSERT_TRUE(runtime()
                    .enqueue(on.device, on.stream,
                             [=, &wrong, rank = comm.rank()] {
                               std::vector<unsigned char> message(kBytes);
                               for (int round = 0; round < kRounds; ++round) {
                                 if (rank > 0 || round > 0) {
                                   if (!from.wait()) ++wrong;
                                   std::memcpy(message.data(),
                                               from.local + static_cast<std::size_t>(round % 2) * kBytes, kBytes);
                                   const auto expected =
                                       static_cast<unsigned char>(rank > 0 ? 3 * round + rank : 3 * round);
                                   for (const unsigned char byte : message) wrong += byte == expected ? 0 : 1;
                                 }
                                 for (unsigned char& byte : message) ++byte;
                                 const int at = rank < 2 ? round % 2 : (round + 1) % 2;
                                 for (const unsigned thread : {0U, 1U, 2U})
                                   to.put(static_cast<std::size_t>(at) * kBytes, message.data(), kBytes, thread, 3);
                                 to.signal();
                               }
                             })
                    .ok());
    on.synchronize();
    EXPECT_EQ(wrong, 0);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(PeerWindows, a_wait_ends_on_request) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    PeerWindow window = PeerWindow::create(comm, 8, on.device).value();
    const DeviceChannelHandle from = window.channel(1 - comm.rank());
    bool arrived = true;
    ASSERT_TRUE(runtime().enqueue(on.device, on.stream, [&arrived, from] { arrived = from.wait(); }).ok());
    window.end_waits();
    on.synchronize();
    EXPECT_FALSE(arrived);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(PeerWindows, a_missing_resource_of_one_rank_fails_on_all_and_the_group_stays_usable) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    for (const char* const call : {"allocate_host", "allocate", "reach"}) {
      if (comm.rank() == 1) runtime().fail_next(call, Status(StatusCode::kUnsupported, "none is left"));
      const Status status = PeerWindow::create(comm, 100, on.device).status();
      EXPECT_THAT(status.message(), HasSubstr("peer_window of 100 bytes on " + to_string(on.device)));
      EXPECT_THAT(status.message(), HasSubstr("none is left"));
      ASSERT_TRUE(comm.barrier().ok());
    }
    EXPECT_EQ(PeerWindow::create(comm, comm.rank() == 0 ? 70000 : 80000, on.device).status().code(),
              StatusCode::kMismatch);
    EXPECT_TRUE(PeerWindow::create(comm, 100, on.device).ok());
    EXPECT_EQ(comm.state(), CommunicatorState::kReady);
  });
}

}  // namespace
}  // namespace accord
