// Results of every collective, for every transport and algorithm, compared bit for bit with the plain computation.
#include <gtest/gtest.h>

#include "conformance/comm/planned.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::buffer;
using testing::combine;
using testing::combined;
using testing::gathered;
using testing::kCounts;
using testing::kSizes;
using testing::PlannedCase;
using testing::run_thread_ranks;
using testing::sample;
using testing::samples;

class Collectives : public testing::Planned {};

template <typename T>
void check_all_reduce(Communicator& comm, DType dtype, ReduceOp op, std::size_t count) {
  const std::vector<T> expected = combined<T>(op, comm.size(), count);
  std::vector<T> input = samples<T>(comm.rank(), count);
  const std::vector<T> before = input;
  std::vector<T> output(count);
  const Status out_of_place = comm.all_reduce(ConstBuffer(buffer(input, dtype)), buffer(output, dtype), op);
  ASSERT_TRUE(out_of_place.ok()) << out_of_place.to_string();
  ASSERT_EQ(output, expected);
  ASSERT_EQ(input, before) << "the input was written";
  const Status in_place = comm.all_reduce(buffer(input, dtype), op);
  ASSERT_TRUE(in_place.ok()) << in_place.to_string();
  ASSERT_EQ(input, expected);
}

TEST_P(Collectives, all_reduce_matches_the_canonical_tree_on_every_rank) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts)
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
          check_all_reduce<float>(comm, DType::kFloat32, op, count);
          check_all_reduce<std::int32_t>(comm, DType::kInt32, op, count);
          check_all_reduce<std::int64_t>(comm, DType::kInt64, op, count);
        }
    });
  }
}

TEST_P(Collectives, all_reduce_of_bfloat16_adds_in_fp32_and_rounds_once) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts) {
        std::vector<std::uint16_t> values(count), expected(count);
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<float> column;
          for (int r = 0; r < comm.size(); ++r)
            column.push_back(testing::from_bfloat16(testing::to_bfloat16(sample(r, i))));
          expected[i] = testing::to_bfloat16(combine(ReduceOp::kSum, column));
          values[i] = testing::to_bfloat16(sample(comm.rank(), i));
        }
        const Status status = comm.all_reduce(buffer(values, DType::kBFloat16), ReduceOp::kSum);
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_EQ(values, expected);
      }
    });
  }
}

TEST_P(Collectives, all_reduce_of_float16_sums_integers_exactly) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    // 0x3c00 = 1, 0x4000 = 2, 0x4200 = 3; their sum 6 = 0x4600.
    const std::uint16_t mine[] = {0x3c00, 0x4000, 0x4200};
    std::vector<std::uint16_t> values(500, mine[comm.rank()]);
    ASSERT_TRUE(comm.all_reduce(buffer(values, DType::kFloat16), ReduceOp::kSum).ok());
    for (const std::uint16_t value : values) ASSERT_EQ(value, 0x4600);
  });
}

TEST_P(Collectives, broadcast_gives_every_rank_the_roots_bytes) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts)
        for (Rank root = 0; root < comm.size(); ++root) {
          std::vector<float> values = samples(comm.rank(), count);
          const Status status = comm.broadcast(buffer(values), root);
          ASSERT_TRUE(status.ok()) << status.to_string();
          ASSERT_EQ(values, samples(root, count));
        }
    });
  }
}

TEST_P(Collectives, all_gather_puts_the_inputs_in_rank_order) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts) {
        const std::vector<std::int64_t> expected = gathered<std::int64_t>(comm.size(), count);
        std::vector<std::int64_t> input = samples<std::int64_t>(comm.rank(), count);
        std::vector<std::int64_t> output(count * comm.size());
        ASSERT_TRUE(comm.all_gather(ConstBuffer(buffer(input, DType::kInt64)), buffer(output, DType::kInt64)).ok());
        ASSERT_EQ(output, expected);
        std::vector<std::int64_t> in_place(count * comm.size(), -1);
        std::copy(input.begin(), input.end(), in_place.begin() + count * comm.rank());
        const ConstBuffer part(in_place.data() + count * comm.rank(), count, DType::kInt64);
        ASSERT_TRUE(comm.all_gather(part, buffer(in_place, DType::kInt64)).ok());
        ASSERT_EQ(in_place, expected);
      }
    });
  }
}

TEST_P(Collectives, reduce_scatter_gives_each_rank_its_part_of_the_sum) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts) {
        std::vector<float> input = samples(comm.rank(), count * comm.size());
        std::vector<float> output(count);
        const std::vector<float> expected = combined(ReduceOp::kSum, comm.size(), count, count * comm.rank());
        ASSERT_TRUE(comm.reduce_scatter(ConstBuffer(buffer(input)), buffer(output), ReduceOp::kSum).ok());
        ASSERT_EQ(output, expected);
        const Buffer part{input.data() + count * comm.rank(), count, DType::kFloat32};
        ASSERT_TRUE(comm.reduce_scatter(ConstBuffer(buffer(input)), part, ReduceOp::kSum).ok());
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), input.begin() + count * comm.rank()));
      }
    });
  }
}

TEST_P(Collectives, no_rank_leaves_a_barrier_before_the_last_one_arrives) {
  for (const int size : kSizes) {
    std::atomic<int> arrived = 0;
    run_thread_ranks(size, options(), [&](Communicator comm) {
      for (int round = 1; round <= 200; ++round) {
        arrived.fetch_add(1);
        ASSERT_TRUE(comm.barrier().ok());
        ASSERT_GE(arrived.load(), round * comm.size());
      }
    });
  }
}

TEST_P(Collectives, messages_arrive_complete_and_in_order) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    const Rank next = (comm.rank() + 1) % comm.size(), previous = (comm.rank() + 2) % comm.size();
    for (const std::size_t count : kCounts) {
      // All ranks send first: a large message must progress while its receiver is busy with its own send.
      std::vector<std::vector<float>> sent, received(3, std::vector<float>(count));
      std::vector<Work> works;
      for (int m = 0; m < 3; ++m) {
        sent.push_back(samples(10 * comm.rank() + m, count));
        works.push_back(comm.send_async(ConstBuffer(buffer(sent.back())), next));
      }
      for (int m = 0; m < 3; ++m) ASSERT_TRUE(comm.recv(buffer(received[m]), previous).ok());
      for (Work& work : works) ASSERT_TRUE(work.wait().ok());
      for (int m = 0; m < 3; ++m) ASSERT_EQ(received[m], samples(10 * previous + m, count));
    }
  });
}

TEST_P(Collectives, different_operations_run_one_after_another) {
  run_thread_ranks(4, options(), [](Communicator comm) {
    for (int round = 0; round < 300; ++round) {
      const std::size_t count = 1 + (round * 37) % 3000;
      check_all_reduce<std::int32_t>(comm, DType::kInt32, ReduceOp::kSum, count);
      std::vector<std::int32_t> values(count, comm.rank() + round);
      ASSERT_TRUE(comm.broadcast(buffer(values, DType::kInt32), round % 4).ok());
      ASSERT_EQ(values, std::vector<std::int32_t>(count, round % 4 + round));
      if (round % 3 == 0) {
        ASSERT_TRUE(comm.barrier().ok());
      }
    }
  });
}

TEST_P(Collectives, many_ranks_have_their_own_rows_in_the_table) {
  for (const int size : {9, 17}) {  // all_reduce has its own rows from 9 ranks, barrier from 17
    std::vector<std::atomic<int>> arrived(size), left(size);
    run_thread_ranks(size, options(), [&](Communicator comm) {
      for (Rank late = 0; late < size; ++late) {
        if (comm.rank() == late) {
          while (arrived[late].load() < size - 1) std::this_thread::yield();
          for (int i = 0; i < 100; ++i) std::this_thread::yield();  // a rank that does not wait would leave now
          EXPECT_EQ(left[late].load(), 0) << "without rank " << late;
        }
        ++arrived[late];
        ASSERT_TRUE(comm.barrier().ok());
        ++left[late];
      }
      for (const std::size_t count : {3, 255, 256, 5000}) {
        check_all_reduce<float>(comm, DType::kFloat32, ReduceOp::kSum, count);
      }
    });
  }
}

std::vector<PlannedCase> collective_cases() {
  const std::vector<std::pair<std::string, std::string>> selections = {
      {"default", ""},
      {"one_shot_in_small_slots",
       "all_reduce:0-inf=one_shot@4k;broadcast:0-inf=direct@4k;all_gather:0-inf=direct@4k;"
       "reduce_scatter:0-inf=direct@4k;send_recv:0-inf=direct@4k"},
      {"two_shot_in_small_slots", "all_reduce:0-inf=two_shot@4k"},
      {"zero_copy", "all_gather:0-inf=zero_copy;broadcast:0-inf=zero_copy"},
      {"zero_copy_in_small_slots", "all_gather:0-inf=zero_copy@4k;broadcast:0-inf=zero_copy@4k"},
      {"packets",
       "all_reduce:0-inf=packet;broadcast:0-inf=packet;all_gather:0-inf=packet;reduce_scatter:0-inf=packet;"
       "send_recv:0-inf=packet"},
      {"dissemination", "barrier:0-inf=dissemination"},
      {"ring", "all_gather:0-inf=ring;broadcast:0-inf=chain"},
      {"ring_in_small_slots", "all_gather:0-inf=ring@4k;broadcast:0-inf=chain@4k"},
      {"recursive_doubling",
       "all_gather:0-inf=recursive_doubling;broadcast:0-inf=scatter_all_gather;"
       "all_reduce:0-inf=recursive_doubling;reduce_scatter:0-inf=recursive_halving"},
      {"recursive_doubling_in_small_slots",
       "all_gather:0-inf=recursive_doubling@4k;broadcast:0-inf=scatter_all_gather@4k;"
       "all_reduce:0-inf=recursive_doubling@4k;reduce_scatter:0-inf=recursive_halving@4k"},
      {"logarithmic",
       "all_gather:0-inf=bruck;broadcast:0-inf=binomial;barrier:0-inf=binomial;all_reduce:0-inf=rabenseifner"},
      {"logarithmic_in_small_slots",
       "all_gather:0-inf=bruck@4k;broadcast:0-inf=binomial@4k;all_reduce:0-inf=rabenseifner@4k"},
  };
  std::vector<PlannedCase> all;
  for (const char* transport : {"inproc", "shm", "ucx"})
    for (const auto& [name, select] : selections)
      if (testing::can_run(transport, select)) all.push_back({std::string(transport) + "_" + name, transport, select});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::ValuesIn(collective_cases()), testing::name_of);

}  // namespace
}  // namespace accord
