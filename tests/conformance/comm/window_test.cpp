// Windows: a put arrives at the given offset, signals are counted, and nothing hangs whichever rank leaves first.
#include "accord/window.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>

#include "conformance/comm/planned.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using testing::buffer;
using ::testing::HasSubstr;
using testing::kSizes;
using testing::PlannedCase;
using testing::run_thread_ranks;
using testing::samples;

class Windows : public testing::Planned {
 protected:
  /// Runs `body` on `size` ranks, each with a window to which rank r contributes `bytes(r)` bytes.
  void with_window(int size, const std::function<std::size_t(Rank)>& bytes,
                   const std::function<void(Communicator&, Window&)>& body) const {
    run_thread_ranks(size, options(), [&](Communicator comm) {
      Result<Window> window = comm.window(bytes(comm.rank()));
      ASSERT_TRUE(window.ok()) << window.status().to_string();
      body(comm, *window);
    });
  }
};

std::size_t kilobyte(Rank) { return 1024; }

void expect_error(const Status& status, StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr(text));
}

TEST_P(Windows, contributions_may_differ_and_be_empty) {
  for (const int size : kSizes)
    with_window(
        size, [](Rank rank) { return std::size_t{5000} * static_cast<std::size_t>(rank); },
        [](Communicator& comm, Window& window) {
          EXPECT_EQ(window.local().size(), 5000U * static_cast<std::size_t>(comm.rank()));
          EXPECT_EQ(window.number(), 0);
          const auto is_zero = [](std::byte value) { return value == std::byte{0}; };
          EXPECT_TRUE(std::all_of(window.local().begin(), window.local().end(), is_zero));
          for (Rank r = 0; r < comm.size(); ++r) {
            EXPECT_EQ(window.bytes(r), 5000U * static_cast<std::size_t>(r));
            EXPECT_EQ(window.peer(r).size(), window.bytes(r));
          }
        });
}

TEST_P(Windows, data_put_before_a_signal_is_visible_after_its_wait) {
  for (const int size : kSizes)
    with_window(
        size, [](Rank) { return std::size_t{1} << 20; },
        [](Communicator& comm, Window& window) {
          // Each rank writes to its place in the memory of all ranks, its own included, and waits for all, round
          // after round.
          for (std::size_t round = 0; round < 20; ++round) {
            const std::vector<float> mine = samples(comm.rank(), 3001, round);
            const std::size_t place = (round % 2 * 8 + static_cast<std::size_t>(comm.rank())) * 3001 * sizeof(float);
            for (Rank to = 0; to < comm.size(); ++to) {
              ASSERT_TRUE(window.put({mine.data(), mine.size(), DType::kFloat32}, to, place).ok());
              ASSERT_TRUE(window.signal(to).ok());
            }
            for (Rank from = 0; from < comm.size(); ++from) {
              const Status status = window.wait(from);
              ASSERT_TRUE(status.ok()) << status.to_string();
              const auto* there = reinterpret_cast<const float*>(window.local().data()) +
                                  (round % 2 * 8 + static_cast<std::size_t>(from)) * 3001;
              EXPECT_EQ(std::vector(there, there + 3001), samples(from, 3001, round));
            }
          }
        });
}

TEST_P(Windows, get_reads_a_ranks_memory_and_mapped_memory_is_the_same) {
  with_window(3, kilobyte, [](Communicator& comm, Window& window) {
    std::fill(window.local().begin(), window.local().end(), static_cast<std::byte>(comm.rank() + 1));
    ASSERT_TRUE(comm.barrier().ok());
    for (Rank from = 0; from < comm.size(); ++from) {
      std::vector<std::uint8_t> got(100);
      const Status status = window.get(buffer(got, DType::kUInt8), from, 924);
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(got, std::vector<std::uint8_t>(100, static_cast<std::uint8_t>(from + 1)));
      EXPECT_EQ(window.peer(from)[1023], static_cast<std::byte>(from + 1));
    }
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_P(Windows, signals_are_counted_for_each_ordered_pair) {
  with_window(3, kilobyte, [](Communicator& comm, Window& window) {
    for (Rank to = 0; to < comm.size(); ++to)
      for (int i = 0; i <= to; ++i) ASSERT_TRUE(window.signal(to).ok());
    ASSERT_TRUE(comm.barrier().ok());
    for (Rank from = 0; from < comm.size(); ++from) {
      for (int i = 0; i <= comm.rank(); ++i) ASSERT_TRUE(window.wait(from).ok());
      const Status status = window.wait(from, {.timeout = std::chrono::milliseconds(1)});
      expect_error(status, StatusCode::kTimeout, "wait for rank " + std::to_string(from));
      EXPECT_EQ(status.ranks(), std::vector<Rank>{from});
    }
    // A wait that times out has no other effect.
    ASSERT_TRUE(comm.barrier().ok());
    ASSERT_TRUE(window.signal((comm.rank() + 1) % 3).ok());
    EXPECT_TRUE(window.wait((comm.rank() + 2) % 3).ok());
  });
}

TEST_P(Windows, invalid_calls_are_rejected_with_the_bounds_and_the_window_stays_usable) {
  with_window(
      2, [](Rank rank) { return rank == 0 ? std::size_t{64} : std::size_t{0}; },
      [](Communicator& comm, Window& window) {
        std::vector<float> values(17);
        const ConstBuffer source(buffer(values));
        expect_error(window.put(source, 0, 0), StatusCode::kInvalidArgument,
                     "17 x float32 at offset 0 do not fit into the 64 B that rank 0 contributed");
        expect_error(window.get(buffer(values), 1, 0), StatusCode::kInvalidArgument, "rank 1 contributed");
        expect_error(window.put({values.data(), 1, DType::kFloat32}, 0, 61), StatusCode::kInvalidArgument, "61");
        expect_error(window.put({values.data(), 1, DType::kFloat32}, 0, SIZE_MAX), StatusCode::kInvalidArgument,
                     "rank 0");
        expect_error(window.put({nullptr, 1, DType::kFloat32}, 0, 0), StatusCode::kInvalidArgument, "null");
        expect_error(window.put(source, 2, 0), StatusCode::kInvalidArgument, "2 is not a rank");
        expect_error(window.signal(-1), StatusCode::kInvalidArgument, "-1 is not a rank");
        expect_error(window.wait(5), StatusCode::kInvalidArgument, "5 is not a rank");
        expect_error(window.put({values.data(), 1, static_cast<DType>(99)}, 0, 0), StatusCode::kInvalidArgument,
                     "dtype 99");
        EXPECT_EQ(window.put({values.data(), 1, DType::kFloat32, {DeviceType::kCuda, 0}}, 0, 0).code(),
                  StatusCode::kUnsupported);
        EXPECT_TRUE(window.put({values.data(), 0, DType::kFloat32}, 1, 0).ok());
        if (comm.rank() == 1) {
          EXPECT_TRUE(window.put({values.data(), 16, DType::kFloat32}, 0, 0).ok());
        }
        ASSERT_TRUE(comm.barrier().ok());
      });
}

TEST_P(Windows, blocks_are_allocated_and_released) {
  with_window(
      2, [](Rank) { return std::size_t{64} << 10; },
      [](Communicator& comm, Window& window) {
        std::vector<WindowBlock> kept;
        {
          Result<WindowBlock> a = window.allocate(1000), b = window.allocate(40000, 4096);
          ASSERT_TRUE(a.ok() && b.ok());
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b->bytes().data()) % 4096, 0U);
          EXPECT_EQ(window.local().data() + a->offset(), a->bytes().data());
          expect_error(window.allocate(60000).status(), StatusCode::kResourceExhausted, "no room for");
          expect_error(window.allocate(1, 48).status(), StatusCode::kInvalidArgument, "alignment 48");
          kept.push_back(*a);
        }
        EXPECT_TRUE(window.allocate(60000).ok());
        EXPECT_EQ(kept[0].bytes().size(), 1000U);
        ASSERT_TRUE(comm.barrier().ok());
      });
}

TEST_P(Windows, a_window_outlives_its_communicator_and_a_block_its_window) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::optional<Communicator> owner(std::move(comm));
    std::optional<Window> window(*owner->window(4096));
    const Rank me = window->rank(), other = 1 - me;
    owner.reset();
    std::vector<WindowBlock> blocks = {*window->allocate(64)};
    ASSERT_TRUE(window->put({&me, 1, DType::kInt32}, other, blocks[0].offset()).ok());
    ASSERT_TRUE(window->signal(other).ok());
    ASSERT_TRUE(window->wait(other).ok());
    const std::span<std::byte> bytes = blocks[0].bytes();
    window.reset();
    EXPECT_EQ(*reinterpret_cast<const int*>(bytes.data()), other);
    blocks.clear();
  });
}

TEST_P(Windows, a_peer_that_releases_the_window_ends_the_wait_but_its_memory_and_signals_remain) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::optional<Window> window(*comm.window(64));
    if (comm.rank() == 1) {
      window->local()[0] = std::byte{42};
      ASSERT_TRUE(window->signal(0).ok());
      window.reset();
    } else {
      ASSERT_TRUE(window->wait(1).ok());
      const Status status = window->wait(1);
      expect_error(status, StatusCode::kPeerLost, "rank 1 has released the window");
      EXPECT_EQ(status.ranks(), std::vector<Rank>{1});
      EXPECT_EQ(window->peer(1)[0], std::byte{42});
    }
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_P(Windows, a_failed_or_closed_group_ends_all_calls_and_earlier_signals_still_count) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    Window window = *comm.window(64);
    ASSERT_TRUE(window.signal(1 - comm.rank()).ok());
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) comm.abort("enough");
    ASSERT_TRUE(window.wait(1 - comm.rank()).ok());
    const float value = 1;
    expect_error(window.wait(1 - comm.rank()), StatusCode::kAborted, "enough");
    expect_error(window.put({&value, 1, DType::kFloat32}, 0, 0), StatusCode::kAborted, "enough");
    expect_error(window.signal(0), StatusCode::kAborted, "enough");
    comm.close();
    EXPECT_EQ(window.local().size(), 64U);
    expect_error(window.wait(1 - comm.rank()), StatusCode::kAborted, "enough");
  });
}

TEST_P(Windows, a_rank_that_closes_its_communicator_is_named) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    Window window = *comm.window(64);
    if (comm.rank() == 2) return comm.close();
    const Status status = window.wait(2);
    expect_error(status, StatusCode::kPeerLost, "rank 2");
    EXPECT_EQ(status.ranks(), std::vector<Rank>{2});
  });
}

TEST_P(Windows, windows_have_the_same_numbers_on_all_ranks) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    Result<Window> first = comm.window(64), second = comm.window(64);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first->number(), 0);
    EXPECT_EQ(second->number(), 1);
    const Result<Window> huge = comm.window(comm.rank() == 1 ? SIZE_MAX : 64);
    expect_error(huge.status(), StatusCode::kInvalidArgument, "rank 1 requests");
    const Result<Window> third = comm.window(64);
    ASSERT_TRUE(third.ok()) << third.status().to_string();
    EXPECT_EQ(third->number(), 2);
  });
}

TEST_P(Windows, threads_of_a_rank_may_wait_for_and_send_signals_concurrently) {
  with_window(2, kilobyte, [](Communicator& comm, Window& window) {
    constexpr int kEach = 500;
    const Rank other = 1 - comm.rank();
    std::atomic<int> failures = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) failures += window.wait(other).ok() ? 0 : 1;
      });
      threads.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) failures += window.signal(other).ok() ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
    EXPECT_EQ(window.wait(other, {.timeout = std::chrono::milliseconds(1)}).code(), StatusCode::kTimeout);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Windows,
                         ::testing::Values(PlannedCase{"inproc", "inproc", ""}, PlannedCase{"shm", "shm", ""}),
                         testing::name_of);

}  // namespace
}  // namespace accord
