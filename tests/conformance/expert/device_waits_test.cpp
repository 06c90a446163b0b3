// Only the kernels of expert calls that have one block wait for other ranks, so that a peer's kernels and other
// streams have room beside them.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "conformance/expert/device_step.hpp"
#include "expert/device/map_kernels.hpp"
#include "expert/device/row_kernels.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using testing::OnDevice;

/// Rank 0 of two in its second call, while its peer has not finished the first one.
class LatePeer {
 public:
  explicit LatePeer(const OnDevice& on)
      : on_(on),
        own_(on, Words{1, 0, 0, 0, 0, 0}, DType::kUInt64),
        shared_(on, Words(2 * kWords), DType::kUInt64),
        pointers_(on, Words{address(0), address(kWords)}, DType::kUInt64) {
    peers_ = {.memory = static_cast<std::byte* const*>(pointers_.buffer().data),
              .stop = word(own_, kStop),
              .own = static_cast<expert::OwnWords*>(own_.buffer().data),
              .size = 2,
              .at = {.done = 64, .ids = 128, .bytes = kWords * sizeof(std::uint64_t), .choices = kTokens}};
    set(peers_.of<std::uint64_t>(0, peers_.at.done));
  }
  void await_read() { launch(expert::AwaitRead{peers_}, 1); }
  /// Runs the kernels that write rows, in several blocks, for a map without rows.
  void write_rows() {
    const DeviceArray zeros(on_, Words(16), DType::kUInt64);
    expert::Map map;
    map.numbers = static_cast<expert::MapNumbers*>(zeros.buffer().data);
    map.counted = reinterpret_cast<expert::RankCounts*>(word(zeros, 8));
    launch(expert::StageTokens{peers_, map, {}, {}}, kBlocks);
    launch(expert::PushSlots{peers_, map, {}, 0, {}}, kBlocks);
    on_.synchronize();
  }
  void is_done() { set(peers_.of<std::uint64_t>(0, peers_.at.done) + 1); }
  void end_waits() { set(word(own_, kStop)); }
  /// Notifies the peer, in several blocks, that each token chooses `expert`. Returns the choice that the peer has
  /// afterwards, which must be the same for all tokens.
  std::int64_t share_choices(std::int64_t expert) {
    const DeviceArray ids(on_, std::vector<std::int64_t>(kTokens, expert), DType::kInt64);
    launch({.peers = peers_, .ids = ids.buffer().data, .wide = true, .tokens = kTokens, .experts = 8}, kBlocks);
    on_.synchronize();
    const auto* const shared = peers_.of<std::int32_t>(1, peers_.at.ids);
    EXPECT_EQ(std::accumulate(shared, shared + kTokens, std::int64_t{0}), kTokens * shared[0]);
    return shared[0];
  }

 private:
  using Words = std::vector<std::uint64_t>;
  static constexpr std::int64_t kTokens = 600;
  static constexpr int kBlocks = 3;
  static constexpr std::size_t kWords = 512;  // per rank
  static constexpr std::size_t kStop = sizeof(expert::OwnWords) / sizeof(std::uint64_t);

  static std::uint64_t* word(const DeviceArray& words, std::size_t i) {
    return static_cast<std::uint64_t*>(words.buffer().data) + i;
  }
  static void set(std::uint64_t* word) { std::atomic_ref(*word).store(1, std::memory_order_release); }
  std::uint64_t address(std::size_t i) const { return reinterpret_cast<std::uint64_t>(word(shared_, i)); }
  template <typename Kernel = expert::ShareRouting>
  void launch(const Kernel& kernel, int blocks) {
    const device::Grid grid{.blocks = blocks, .threads = Kernel::kThreads};
    ASSERT_TRUE(device::launch(on_.runtime, kernel, grid, on_.device, on_.stream).ok());
  }

  const OnDevice on_;
  const DeviceArray own_, shared_, pointers_;
  expert::Peers peers_;
};

class ExpertWaits : public testing::HostDevices {
 protected:
  ~ExpertWaits() override {
    peer_.reset();
    EXPECT_TRUE(runtime().destroy_stream(kDevice, stream_).ok());
  }
  static constexpr Device kDevice{DeviceType::kCuda, 0};
  const Stream stream_ = runtime().create_stream(kDevice, false).value();
  std::optional<LatePeer> peer_{std::in_place, OnDevice{runtime(), kDevice, stream_}};
};

TEST_F(ExpertWaits, kernels_of_many_blocks_do_not_wait_for_a_peer) {
  EXPECT_EQ(peer_->share_choices(3), 3);
  peer_->write_rows();
}

TEST_F(ExpertWaits, one_block_waits_until_the_peer_is_done) {
  peer_->await_read();
  const device::Event after = runtime().create_event(kDevice).value();
  ASSERT_TRUE(runtime().record(after, kDevice, stream_).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(runtime().has_happened(after).value());
  peer_->is_done();
  EXPECT_EQ(peer_->share_choices(5), 5);
  EXPECT_TRUE(runtime().destroy_event(after).ok());
}

TEST_F(ExpertWaits, a_cancelled_wait_prevents_later_kernels_from_writing) {
  EXPECT_EQ(peer_->share_choices(2), 2);
  peer_->await_read();
  peer_->end_waits();
  EXPECT_EQ(peer_->share_choices(4), 2);
}

TEST_F(ExpertWaits, each_call_waits_once_before_it_writes) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    testing::ExpertStep step(comm, on);
    const int before = runtime().launches(expert::AwaitRead::kName);
    ASSERT_TRUE(comm.barrier().ok());
    step.all();
    ASSERT_TRUE(comm.barrier().ok());
    EXPECT_EQ(runtime().launches(expert::AwaitRead::kName) - before, 2 * 3);
  });
}

}  // namespace
}  // namespace accord
