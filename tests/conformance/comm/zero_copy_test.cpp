// Collectives whose buffers are in windows: the results are bit-identical wherever in the windows the buffers are,
// and if the buffers of only some ranks are in windows, all ranks get the same error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "conformance/comm/planned.hpp"
#include "ranks/process_ranks.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::buffer;
using testing::combined;
using testing::gathered;
using ::testing::HasSubstr;
using testing::kCounts;
using testing::kSizes;
using testing::PlannedCase;
using testing::run_thread_ranks;
using testing::samples;

class ZeroCopy : public testing::Planned {};

/// Arrays in two windows of a communicator, at offsets that differ from rank to rank.
class Arrays {
 public:
  explicit Arrays(Communicator& comm) : windows_{*comm.window(kBytes), *comm.window(kBytes)} {
    (void)array<std::byte>(100 * static_cast<std::size_t>(comm.rank()) + 1);
    (void)array<std::byte>(10);
  }

  /// Allocates `count` elements, in the two windows alternately. The array lives as long as this object.
  template <typename T = float>
  std::span<T> array(std::size_t count) {
    blocks_.push_back(*windows_[blocks_.size() % 2].allocate(count * sizeof(T)));
    return {reinterpret_cast<T*>(blocks_.back().bytes().data()), count};
  }
  template <typename T>
  std::span<T> array(const std::vector<T>& values) {
    const std::span<T> copy = array<T>(values.size());
    std::copy(values.begin(), values.end(), copy.begin());
    return copy;
  }
  void clear() { blocks_.erase(blocks_.begin() + 2, blocks_.end()); }

 private:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;
  std::array<Window, 2> windows_;
  std::vector<WindowBlock> blocks_;
};

Buffer of(std::span<float> values) { return {values.data(), values.size(), DType::kFloat32, {}}; }
std::vector<float> values_of(std::span<const float> array) { return {array.begin(), array.end()}; }

TEST_P(ZeroCopy, all_reduce_matches_the_canonical_tree_in_place_and_out_of_place) {
  for (const int size : kSizes)
    run_thread_ranks(size, options(), [](Communicator comm) {
      Arrays arrays(comm);
      for (const std::size_t count : kCounts) {
        arrays.clear();
        const std::span<float> input = arrays.array(samples(comm.rank(), count)), output = arrays.array<float>(count);
        const std::vector<float> expected = combined(ReduceOp::kSum, comm.size(), count);
        const Status apart = comm.all_reduce(ConstBuffer(of(input)), of(output), ReduceOp::kSum);
        ASSERT_TRUE(apart.ok()) << apart.to_string();
        ASSERT_EQ(values_of(output), expected);
        ASSERT_EQ(values_of(input), samples(comm.rank(), count)) << "the input was written";
        // Some ranks in place, some not.
        const bool in_place = comm.rank() % 2 == 0;
        const Status mixed = comm.all_reduce(ConstBuffer(of(input)), of(in_place ? input : output), ReduceOp::kMax);
        if (GetParam().name.find("one_shot") == std::string::npos) {
          ASSERT_TRUE(mixed.ok()) << mixed.to_string();
          ASSERT_EQ(values_of(in_place ? input : output), combined(ReduceOp::kMax, comm.size(), count));
        } else if (!mixed.ok()) {
          EXPECT_THAT(mixed.message(), HasSubstr("whether a call is in place"));
          return;
        }
      }
    });
}

TEST_P(ZeroCopy, a_caller_may_change_its_buffers_once_its_call_returns) {
  for (const int size : {2, 3})
    run_thread_ranks(size, options(), [](Communicator comm) {
      Arrays arrays(comm);
      constexpr std::size_t kCount = 3001;
      const std::span<float> input = arrays.array<float>(kCount), output = arrays.array<float>(kCount);
      const auto total = static_cast<float>(comm.size() * (comm.size() - 1) / 2);
      for (int round = 0; round < (testing::kSanitized ? 30 : 300); ++round) {
        std::fill(input.begin(), input.end(), static_cast<float>(comm.rank() + round));
        const std::span<float> result = round % 2 == 0 ? output : input;
        ASSERT_TRUE(comm.all_reduce(ConstBuffer(of(input)), of(result), ReduceOp::kSum).ok());
        const float expected = total + static_cast<float>(comm.size() * round);
        ASSERT_TRUE(std::all_of(result.begin(), result.end(), [=](float value) { return value == expected; }));
        std::fill(output.begin(), output.end(), -1.0F);
      }
    });
}

TEST_P(ZeroCopy, parts_are_gathered_scattered_and_exchanged) {
  for (const int size : kSizes)
    run_thread_ranks(size, options(), [](Communicator comm) {
      Arrays arrays(comm);
      const auto n = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
      for (const std::size_t count : kCounts) {
        arrays.clear();
        const std::span<float> part = arrays.array(samples(comm.rank(), count)), all = arrays.array<float>(n * count);
        ASSERT_TRUE(comm.all_gather(ConstBuffer(of(part)), of(all)).ok());
        ASSERT_EQ(values_of(all), gathered(comm.size(), count));

        std::fill(all.begin(), all.end(), -1.0F);  // in place
        const std::span<float> own = all.subspan(me * count, count);
        std::copy(part.begin(), part.end(), own.begin());
        ASSERT_TRUE(comm.all_gather(ConstBuffer(of(own)), of(all)).ok());
        ASSERT_EQ(values_of(all), gathered(comm.size(), count));

        const std::span<float> whole = arrays.array(samples(comm.rank(), n * count));
        const std::vector<float> sum = combined(ReduceOp::kSum, comm.size(), count, me * count);
        ASSERT_TRUE(comm.reduce_scatter(ConstBuffer(of(whole)), of(part), ReduceOp::kSum).ok());
        ASSERT_EQ(values_of(part), sum);
        ASSERT_TRUE(
            comm.reduce_scatter(ConstBuffer(of(whole)), of(whole.subspan(me * count, count)), ReduceOp::kSum).ok());
        ASSERT_EQ(values_of(whole.subspan(me * count, count)), sum);

        const std::vector<float> sent = samples(comm.rank(), n * count);
        std::vector<float> exchanged;
        for (Rank from = 0; from < comm.size(); ++from) {
          const std::vector<float> theirs = samples(from, count, me * count);
          exchanged.insert(exchanged.end(), theirs.begin(), theirs.end());
        }
        std::copy(sent.begin(), sent.end(), whole.begin());
        ASSERT_TRUE(comm.all_to_all(ConstBuffer(of(whole)), of(all)).ok());
        ASSERT_EQ(values_of(all), exchanged);
        ASSERT_TRUE(comm.all_to_all(ConstBuffer(of(whole)), of(whole)).ok());
        ASSERT_EQ(values_of(whole), exchanged);
      }
    });
}

TEST_P(ZeroCopy, every_rank_may_be_the_root) {
  for (const int size : kSizes)
    run_thread_ranks(size, options(), [](Communicator comm) {
      Arrays arrays(comm);
      const auto n = static_cast<std::size_t>(comm.size());
      for (const std::size_t count : kCounts)
        for (Rank root = 0; root < comm.size(); ++root) {
          arrays.clear();
          const bool is_root = comm.rank() == root;
          const std::span<float> part = arrays.array(samples(comm.rank(), count)), result = arrays.array<float>(count);
          ASSERT_TRUE(
              comm.reduce(ConstBuffer(of(part)), of(is_root ? result : std::span<float>()), ReduceOp::kSum, root).ok());
          if (is_root) {
            ASSERT_EQ(values_of(result), combined(ReduceOp::kSum, comm.size(), count));
          }
          ASSERT_TRUE(comm.broadcast(of(part), root).ok());
          ASSERT_EQ(values_of(part), samples(root, count));

          const std::span<float> all = is_root ? arrays.array(samples(root, n * count)) : std::span<float>();
          ASSERT_TRUE(comm.scatter(ConstBuffer(of(all)), of(part), root).ok());
          ASSERT_EQ(values_of(part), samples(root, count, static_cast<std::size_t>(comm.rank()) * count));
          ASSERT_TRUE(comm.gather(ConstBuffer(of(part)), of(all), root).ok());
          if (is_root) {
            ASSERT_EQ(values_of(all), samples(root, n * count));
          }
        }
    });
}

TEST_P(ZeroCopy, scaled_and_narrow_sums_are_bit_identical_to_ordinary_calls) {
  for (const int size : {2, 3, 5})
    run_thread_ranks(size, options(), [](Communicator comm) {
      Arrays arrays(comm);
      constexpr std::size_t kCount = 4099;
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3FN})
        for (const bool scaled : {false, true}) {
          const Reduction op = scaled ? Reduction::premul_sum(0.5 + comm.rank())
                                      : Reduction(comm.size() % 2 == 0 ? ReduceOp::kAvg : ReduceOp::kSum);
          std::vector<std::uint8_t> bytes(kCount * size_of(dtype));
          for (std::size_t i = 0; i < bytes.size(); ++i)
            bytes[i] = static_cast<std::uint8_t>((i * 7 + static_cast<std::size_t>(comm.rank()) * 31) % 64);
          arrays.clear();
          const std::span<std::uint8_t> input = arrays.array(bytes);
          std::vector<std::uint8_t> expected(bytes.size());
          ASSERT_TRUE(comm.all_reduce({bytes.data(), kCount, dtype}, {expected.data(), kCount, dtype, {}}, op).ok());
          ASSERT_TRUE(comm.all_reduce(Buffer{input.data(), kCount, dtype, {}}, op).ok());
          ASSERT_TRUE(std::equal(input.begin(), input.end(), expected.begin()));
        }
    });
}

TEST_P(ZeroCopy, calls_and_works_on_buffers_of_all_kinds_may_alternate) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    Arrays arrays(comm);
    constexpr std::size_t kCount = 5000;
    const std::span<float> in_window = arrays.array(samples(comm.rank(), kCount));
    std::vector<float> in_private = samples(comm.rank(), kCount), other = in_private;
    std::vector<Work> works = {comm.all_reduce_async(of(in_window), ReduceOp::kSum),
                               comm.all_reduce_async(buffer(in_private), ReduceOp::kSum),
                               comm.broadcast_async(of(in_window), 1),
                               comm.all_reduce_async(ConstBuffer(buffer(other)), buffer(in_private), ReduceOp::kSum)};
    for (Work& work : works) {
      const Status status = work.wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_EQ(values_of(in_window), combined(ReduceOp::kSum, 3, kCount));
    EXPECT_EQ(in_private, combined(ReduceOp::kSum, 3, kCount));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans, ZeroCopy,
    ::testing::Values(PlannedCase{"inproc", "inproc", ""}, PlannedCase{"shm", "shm", ""},
                      PlannedCase{"inproc_small_too", "inproc",
                                  "broadcast:0-inf=zero_copy;all_gather:0-inf=zero_copy;reduce_scatter:0-inf=zero_copy;"
                                  "all_reduce[registered=yes]:0-inf=two_shot_zero_copy;reduce:0-inf=zero_copy;"
                                  "gather:0-inf=zero_copy;scatter:0-inf=zero_copy;all_to_all:0-inf=zero_copy"},
                      PlannedCase{"shm_in_slices", "shm",
                                  "broadcast:0-inf=zero_copy@64;all_gather:0-inf=zero_copy@256;"
                                  "reduce_scatter:0-inf=zero_copy@1k;all_reduce:0-inf=two_shot_zero_copy@4k;"
                                  "reduce:0-inf=zero_copy@1k;all_to_all:0-inf=zero_copy@512"},
                      PlannedCase{"inproc_one_shot", "inproc", "all_reduce[registered=yes]:0-inf=one_shot_zero_copy"}),
    testing::name_of);

/// Returns the dump of the communicator's flight recorder, which names the algorithm of each call.
std::string algorithms_of(const Communicator& comm) {
  const testing::TemporaryDirectory directory;
  std::ifstream file(*comm.dump(directory.path()));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Registration, selects_the_algorithm_of_a_call) {
  run_thread_ranks(2, {}, [](Communicator comm) {
    Arrays arrays(comm);
    std::vector<float> in_private(10000);
    ASSERT_TRUE(comm.all_reduce(buffer(in_private), ReduceOp::kSum).ok());
    EXPECT_THAT(algorithms_of(comm), ::testing::Not(HasSubstr("zero_copy")));
    ASSERT_TRUE(comm.all_reduce(of(arrays.array<float>(10000)), ReduceOp::kSum).ok());
    EXPECT_THAT(algorithms_of(comm), HasSubstr("two_shot_zero_copy"));
  });
}

TEST(Registration, on_some_ranks_only_is_the_same_error_on_all) {
  for (const std::size_t count : {10, 100000})
    run_thread_ranks(3, {}, [count](Communicator comm) {
      Arrays arrays(comm);
      std::vector<float> in_private(count);
      const Status status =
          comm.all_reduce(comm.rank() == 1 ? buffer(in_private) : of(arrays.array<float>(count)), ReduceOp::kSum);
      EXPECT_EQ(status.code(), StatusCode::kMismatch);
      EXPECT_THAT(status.message(), HasSubstr("are in windows of the group, those of rank"));
    });
}

TEST(Registration, counts_only_if_all_buffers_of_a_rank_are_registered) {
  run_thread_ranks(2, {}, [](Communicator comm) {
    Arrays arrays(comm);
    std::vector<float> input(10000, 1);
    const std::span<float> output = arrays.array<float>(10000);
    ASSERT_TRUE(comm.all_reduce(ConstBuffer(buffer(input)), of(output), ReduceOp::kSum).ok());
    EXPECT_EQ(output[9999], 2);
    EXPECT_THAT(algorithms_of(comm), ::testing::Not(HasSubstr("zero_copy")));
  });
}

TEST(Registration, in_a_window_that_a_rank_released_is_reported) {
  run_thread_ranks(2, {}, [](Communicator comm) {
    std::vector<Window> windows = {*comm.window(1 << 16), *comm.window(1 << 16)};
    const bool lets_go = comm.rank() == 1;
    const Buffer mine{windows[lets_go ? 1 : 0].local().data(), 8192, DType::kFloat32, {}};
    if (lets_go) windows.erase(windows.begin());
    const Status status = comm.all_reduce(mine, ReduceOp::kSum);
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_THAT(status.message(), HasSubstr("is in window 0, which rank 1 has released"));
  });
}

TEST(Registration, ends_with_the_window_and_calls_continue) {
  run_thread_ranks(2, {}, [](Communicator comm) {
    for (int i = 0; i < 20; ++i) {
      Window window = *comm.window(1 << 16);
      const Buffer mine{window.local().data(), 8192, DType::kFloat32, {}};
      ASSERT_TRUE(comm.all_reduce(mine, ReduceOp::kSum).ok());
      ASSERT_TRUE(comm.barrier().ok());
    }
    std::vector<float> values(8192, 1);
    ASSERT_TRUE(comm.all_reduce(buffer(values), ReduceOp::kSum).ok());
    EXPECT_EQ(values[8191], 2);
  });
}

}  // namespace
}  // namespace accord
