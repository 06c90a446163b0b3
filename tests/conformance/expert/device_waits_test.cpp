// What the kernels of expert calls wait for. A call is one kernel. It waits for the rows that it needs, and for nothing
// else of other ranks; and no rank overwrites rows that another one has not read.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "conformance/expert/device_step.hpp"
#include "expert/device/prepare_map.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using testing::BusyStream;
using testing::DeviceArray;
using testing::kThreadSanitizer;
using testing::OnDevice;

/// A group of two ranks with two experts each, and one rank's arrays. A token of rank r has the value 10 r + its
/// number in all elements.
struct WaitedTokens {
  static constexpr std::size_t kWidth = 32;  // few tokens are added up at a time
  WaitedTokens(Communicator& comm, const OnDevice& where, std::vector<std::int64_t> chosen, std::size_t top_k)
      : on(where),
        count(chosen.size() / top_k),
        group(testing::made(comm, {.experts = 4,
                                   .top_k = static_cast<int>(top_k),
                                   .hidden = static_cast<int>(kWidth),
                                   .max_tokens_per_rank = 8,
                                   .max_recv_rows = 32,
                                   .dtype = DType::kFloat32,
                                   .device = where.device})),
        handle(group.make_handle().value()),
        ids(where, chosen, DType::kInt64),
        x(where, rows_of(comm.rank(), count), DType::kFloat32),
        recv(where, std::vector<float>(32 * kWidth, -1.0F), DType::kFloat32),
        result(where, std::vector<float>(count * kWidth, -1.0F), DType::kFloat32) {
    const Status prepared = group.prepare(handle, {.ids = ids.buffer(), .stream = on.stream});
    EXPECT_TRUE(prepared.ok()) << prepared.to_string();
    on.synchronize();
  }
  static std::vector<float> rows_of(Rank rank, std::size_t count, float more = 0) {
    std::vector<float> rows;
    for (std::size_t i = 0; i < count * kWidth; ++i)
      rows.push_back(10.0F * static_cast<float>(rank) + static_cast<float>(i / kWidth) + more);
    return rows;
  }
  void dispatch(const DeviceArray& to) {
    ASSERT_TRUE(group.dispatch(handle, {.tokens = x.buffer(), .recv_tokens = to.buffer(), .stream = on.stream}).ok());
  }
  void combine() {
    ASSERT_TRUE(
        group.combine(handle, {.expert_out = recv.buffer(), .result = result.buffer(), .stream = on.stream}).ok());
  }
  /// The first element of a row that kernels may be writing.
  static float now(const DeviceArray& rows, std::size_t row) {
    auto* const at = static_cast<float*>(rows.buffer().data) + row * kWidth;
    return std::atomic_ref(*at).load(std::memory_order_relaxed);
  }
  static bool is_soon(const DeviceArray& rows, std::size_t row, float value) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (now(rows, row) != value && std::chrono::steady_clock::now() < late) std::this_thread::yield();
    return now(rows, row) == value;
  }

  const OnDevice on;
  const std::size_t count;
  ExpertGroup group;
  ExpertHandle handle;
  DeviceArray ids, x, recv, result;
};

class ExpertWaits : public testing::HostDevices {
 protected:
  /// Whether everything in the stream is done.
  static bool is_idle(const OnDevice& on) {
    const device::Event end = runtime().create_event(on.device).value();
    EXPECT_TRUE(runtime().record(end, on.device, on.stream).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool idle = runtime().has_happened(end).value();
    EXPECT_TRUE(runtime().destroy_event(end).ok());
    return idle;
  }
  static int launches() {
    int all = 0;
    for (const auto& [kernel, count] : runtime().launches()) all += count;
    return all;
  }
  static void hold(std::optional<BusyStream>& busy, const OnDevice& on) {
    busy.emplace(runtime().make_stream_busy(on.stream));
  }
};

TEST_F(ExpertWaits, each_call_is_one_kernel) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    testing::ExpertStep step(comm, on);
    const DeviceArray grad(on, std::vector<float>(8), DType::kFloat32);
    step.all();
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    const int before = launches();
    ASSERT_TRUE(comm.barrier().ok());
    step.all();
    ASSERT_TRUE(step.group
                    .dispatch_backward(step.handle,
                                       {.grad = step.recv.buffer(), .grad_tokens = grad.buffer(), .stream = on.stream})
                    .ok());
    ASSERT_TRUE(
        step.group
            .combine_backward(step.handle,
                              {.grad = step.x.buffer(), .grad_expert_out = step.recv.buffer(), .stream = on.stream})
            .ok());
    ASSERT_TRUE(comm.barrier().ok());
    EXPECT_EQ(launches() - before, 2 * 5);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(ExpertWaits, an_expert_whose_rows_have_come_does_not_wait_for_another) {
  if (kThreadSanitizer) GTEST_SKIP() << "it reads rows while a kernel writes them";
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    // Expert 0 has rows of rank 0 alone, and expert 1 those of rank 1.
    const std::int64_t mine = comm.rank();
    WaitedTokens tokens(comm, on, std::vector<std::int64_t>(6, mine), 1);
    std::optional<BusyStream> late;
    if (comm.rank() == 1) hold(late, on);
    ASSERT_TRUE(comm.barrier().ok());
    tokens.dispatch(tokens.recv);
    if (comm.rank() == 0) {
      for (std::size_t slot = 0; slot < 6; ++slot)
        EXPECT_TRUE(WaitedTokens::is_soon(tokens.recv, slot, static_cast<float>(slot))) << slot;
      EXPECT_EQ(WaitedTokens::now(tokens.recv, 6), -1.0F);
      EXPECT_FALSE(is_idle(on));
    }
    ASSERT_TRUE(comm.barrier().ok());
    late.reset();
    on.synchronize();
    EXPECT_EQ(WaitedTokens::now(tokens.recv, 11), comm.rank() == 0 ? 15.0F : -1.0F);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(ExpertWaits, a_token_whose_rows_have_come_does_not_wait_for_another) {
  if (kThreadSanitizer) GTEST_SKIP() << "it reads rows while a kernel writes them";
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    // The first tokens choose experts of rank 0, the others those of rank 1.
    WaitedTokens tokens(comm, on, {0, 1, 0, 1, 2, 3, 2, 3}, 2);
    tokens.dispatch(tokens.recv);
    on.synchronize();
    std::optional<BusyStream> late;
    if (comm.rank() == 1) hold(late, on);
    ASSERT_TRUE(comm.barrier().ok());
    tokens.combine();
    if (comm.rank() == 0) {
      for (std::size_t token = 0; token < 2; ++token)
        EXPECT_TRUE(WaitedTokens::is_soon(tokens.result, token, 2.0F * static_cast<float>(token))) << token;
      EXPECT_EQ(WaitedTokens::now(tokens.result, 2), -1.0F);
      EXPECT_FALSE(is_idle(on));
    }
    ASSERT_TRUE(comm.barrier().ok());
    late.reset();
    on.synchronize();
    EXPECT_EQ(WaitedTokens::now(tokens.result, 3), 2.0F * (10.0F * static_cast<float>(comm.rank()) + 3.0F));
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(ExpertWaits, a_rank_is_not_awaited_that_sends_no_rows) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const std::int64_t own = comm.rank() == 0 ? 0 : 2;
    WaitedTokens tokens(comm, on, std::vector<std::int64_t>(3, own), 1);
    if (comm.rank() == 0) {
      tokens.dispatch(tokens.recv);
      on.synchronize();
      EXPECT_EQ(WaitedTokens::now(tokens.recv, 2), 2.0F);
    }
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) tokens.dispatch(tokens.recv);
    on.synchronize();
  });
}

TEST_F(ExpertWaits, rows_are_not_overwritten_before_they_are_read) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    WaitedTokens tokens(comm, on, comm.rank() == 0 ? std::vector<std::int64_t>(3, 2) : std::vector<std::int64_t>(), 1);
    const DeviceArray again(on, std::vector<float>(32 * WaitedTokens::kWidth), DType::kFloat32);
    std::optional<BusyStream> late;
    if (comm.rank() == 1) hold(late, on);
    ASSERT_TRUE(comm.barrier().ok());
    tokens.dispatch(tokens.recv);
    if (comm.rank() == 0) {
      on.synchronize();  // its rows are in the memory of rank 1
      tokens.x.put(testing::bytes_of(WaitedTokens::rows_of(0, 3, 100)));
    }
    tokens.dispatch(again);
    EXPECT_FALSE(is_idle(on));
    ASSERT_TRUE(comm.barrier().ok());
    late.reset();
    on.synchronize();
    if (comm.rank() == 1) {
      EXPECT_EQ(WaitedTokens::now(tokens.recv, 2), 2.0F);
      EXPECT_EQ(WaitedTokens::now(again, 2), 102.0F);
    }
    ASSERT_TRUE(comm.barrier().ok());
  });
}

/// Rank 0 of two in its second call, while its peer has not finished the first one.
class LatePeer {
 public:
  explicit LatePeer(const OnDevice& on)
      : on_(on),
        own_(on, Words{1, 0, 0, 0, 0, 0, 0, 0, 0}, DType::kUInt64),
        stop_(on, Words(1), DType::kUInt64),
        shared_(on, Words(2 * kWords), DType::kUInt64),
        pointers_(on, Words{address(0), address(kWords)}, DType::kUInt64) {
    static_assert(sizeof(expert::OwnWords) == 9 * sizeof(std::uint64_t));
    peers_ = {.memory = static_cast<std::byte* const*>(pointers_.buffer().data),
              .stop = static_cast<const std::uint64_t*>(stop_.buffer().data),
              .own = static_cast<expert::OwnWords*>(own_.buffer().data),
              .size = 2,
              .at = {.done = 64, .routing = 128, .ids = 256, .bytes = kWords * 8, .choices = kTokens}};
    set(peers_.of<std::uint64_t>(0, peers_.at.done));
  }
  /// Shares the choice of `expert` by each token, with several blocks.
  void share(std::int64_t expert) {
    ids_.emplace(on_, std::vector<std::int64_t>(kTokens, expert), DType::kInt64);
    numbers_.emplace(on_, Words(16, 7), DType::kUInt64);
    expert::Map map;
    map.numbers = static_cast<expert::MapNumbers*>(numbers_->buffer().data);
    const expert::PrepareMap kernel{
        peers_, map, {.ids = ids_->buffer().data, .wide = true, .tokens = kTokens, .experts = 8}};
    const device::Grid grid{.blocks = 3,
                            .threads = expert::PrepareMap::kThreads,
                            .shared_bytes = expert::PrepareMap::kShared,
                            .together = true};
    ASSERT_TRUE(device::launch(on_.runtime, kernel, grid, on_.device, on_.stream).ok());
  }
  /// The choice of the last token that the peer has.
  std::int32_t shared() const { return peers_.of<std::int32_t>(1, peers_.at.ids)[kTokens - 1]; }
  void end_waits() { set(static_cast<std::uint64_t*>(stop_.buffer().data)); }
  std::int64_t rows_of_map() const { return static_cast<expert::MapNumbers*>(numbers_->buffer().data)->recv_rows; }

 private:
  using Words = std::vector<std::uint64_t>;
  static constexpr std::int64_t kTokens = 600;
  static constexpr std::size_t kWords = 512;  // per rank

  static void set(std::uint64_t* word) { std::atomic_ref(*word).store(1, std::memory_order_release); }
  std::uint64_t address(std::size_t i) const {
    return reinterpret_cast<std::uint64_t>(static_cast<std::uint64_t*>(shared_.buffer().data) + i);
  }

  const OnDevice on_;
  const DeviceArray own_, stop_, shared_, pointers_;
  std::optional<DeviceArray> ids_, numbers_;
  expert::Peers peers_;
};

TEST_F(ExpertWaits, a_cancelled_wait_leaves_the_map_unbuilt_and_prevents_later_kernels_from_writing) {
  const Device device{DeviceType::kCuda, 0};
  const Stream stream = runtime().create_stream(device, false).value();
  const OnDevice on{runtime(), device, stream};
  {
    LatePeer peer(on);
    peer.share(3);
    EXPECT_FALSE(is_idle(on));
    EXPECT_EQ(peer.shared(), 0);
    peer.end_waits();
    on.synchronize();
    EXPECT_EQ(peer.shared(), 0);
    EXPECT_EQ(peer.rows_of_map(), -1);
    peer.share(4);
    on.synchronize();
    EXPECT_EQ(peer.shared(), 0);
    EXPECT_EQ(peer.rows_of_map(), -1);
  }
  EXPECT_TRUE(runtime().destroy_stream(device, stream).ok());
}

}  // namespace
}  // namespace accord
