// Rings over real transports. Their sums have their own order, so they are compared with that order and not
// with the tree.
#include <gtest/gtest.h>

#include "conformance/comm/planned.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::buffer;
using testing::kCounts;
using testing::kSizes;
using testing::PlannedCase;
using testing::run_thread_ranks;
using testing::sample;
using testing::samples;

class Rings : public testing::Planned {};

// Returns the sum of element i over all ranks, added once round the ring from rank `first`, in fp32; the elements are
// bfloat16 values if `is_bfloat16`.
float sum_around_the_ring(int size, Rank first, std::size_t i, bool is_bfloat16 = false) {
  float sum = 0;
  for (int step = 0; step < size; ++step) {
    float value = sample((first + step) % size, i);
    if (is_bfloat16) value = testing::from_bfloat16(testing::to_bfloat16(value));
    sum = step == 0 ? value : sum + value;
  }
  return sum;
}

TEST_P(Rings, reduce_scatter_adds_each_part_around_the_ring_to_its_owner) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts) {
        std::vector<float> input = samples(comm.rank(), count * comm.size()), output(count), expected(count);
        for (std::size_t i = 0; i < count; ++i)
          expected[i] = sum_around_the_ring(comm.size(), (comm.rank() + 1) % comm.size(), count * comm.rank() + i);
        ASSERT_TRUE(comm.reduce_scatter(ConstBuffer(buffer(input)), buffer(output), ReduceOp::kSum).ok());
        ASSERT_EQ(output, expected);
      }
    });
  }
}

TEST_P(Rings, reduce_scatter_of_bfloat16_rounds_once) {
  run_thread_ranks(4, options(), [](Communicator comm) {
    constexpr std::size_t kCount = 3001;
    std::vector<std::uint16_t> input(kCount * 4), output(kCount), expected(kCount);
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = testing::to_bfloat16(sample(comm.rank(), i));
    for (std::size_t i = 0; i < kCount; ++i)
      expected[i] = testing::to_bfloat16(sum_around_the_ring(4, (comm.rank() + 1) % 4, kCount * comm.rank() + i, true));
    const Status status = comm.reduce_scatter(ConstBuffer(buffer(input, DType::kBFloat16)),
                                              buffer(output, DType::kBFloat16), ReduceOp::kSum);
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_EQ(output, expected);
  });
}

TEST_P(Rings, all_reduce_gives_one_of_the_ring_sums_bit_identical_on_all_ranks_in_every_run) {
  for (const int size : kSizes) {
    std::vector<std::vector<float>> results(size);
    run_thread_ranks(size, options(), [&](Communicator comm) {
      for (const std::size_t count : kCounts) {
        std::vector<float> values = samples(comm.rank(), count), again = values;
        ASSERT_TRUE(comm.all_reduce(buffer(values), ReduceOp::kSum).ok());
        ASSERT_TRUE(comm.all_reduce(buffer(again), ReduceOp::kSum).ok());
        ASSERT_EQ(values, again);
        for (std::size_t i = 0; i < count; ++i) {
          bool is_one = false;
          for (Rank first = 0; first < comm.size(); ++first)
            is_one |= values[i] == sum_around_the_ring(comm.size(), first, i);
          ASSERT_TRUE(is_one) << "element " << i << " of " << count;
        }
        results[comm.rank()].insert(results[comm.rank()].end(), values.begin(), values.end());
      }
    });
    for (const std::vector<float>& result : results) ASSERT_EQ(result, results[0]);
  }
}

std::vector<PlannedCase> ring_cases() {
  std::vector<PlannedCase> all;
  for (const std::string transport : {"inproc", "shm"}) {
    all.push_back({transport, transport, "all_reduce:0-inf=ring;reduce_scatter:0-inf=ring"});
    all.push_back({transport + "_in_small_slots", transport, "all_reduce:0-inf=ring@4k;reduce_scatter:0-inf=ring@4k"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Rings, ::testing::ValuesIn(ring_cases()), testing::name_of);

}  // namespace
}  // namespace accord
