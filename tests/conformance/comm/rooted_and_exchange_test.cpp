// reduce, gather, scatter and all_to_all for every transport and algorithm, compared bit for bit with the plain
// computation.
#include <gtest/gtest.h>

#include "conformance/comm/planned.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::buffer;
using testing::combined;
using testing::gathered;
using testing::kCounts;
using testing::kOfWorld;
using testing::kSizes;
using testing::PlannedCase;
using testing::run_thread_ranks;
using testing::samples;

class RootedAndExchange : public testing::Planned {};

TEST_P(RootedAndExchange, reduce_gives_the_root_the_canonical_sum_and_writes_nothing_elsewhere) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts)
        for (Rank root = 0; root < comm.size(); ++root) {
          const std::vector<float> expected =
              comm.rank() == root ? combined(ReduceOp::kSum, comm.size(), count) : std::vector<float>(count, -1);
          std::vector<float> input = samples(comm.rank(), count), output(count, -1);
          const Status status = comm.reduce(ConstBuffer(buffer(input)), buffer(output), ReduceOp::kSum, root);
          ASSERT_TRUE(status.ok()) << status.to_string();
          ASSERT_EQ(output, expected);
          ASSERT_EQ(input, samples(comm.rank(), count));
          ASSERT_TRUE(comm.reduce(ConstBuffer(buffer(input)), buffer(input), ReduceOp::kSum, root).ok());
          ASSERT_EQ(input, comm.rank() == root ? expected : samples(comm.rank(), count));
        }
    });
  }
}

TEST_P(RootedAndExchange, gather_gives_the_root_all_inputs_in_rank_order) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts)
        for (Rank root = 0; root < comm.size(); ++root) {
          const std::vector<float> expected = gathered(comm.size(), count);
          std::vector<float> input = samples(comm.rank(), count), output;
          if (comm.rank() == root) output.resize(count * comm.size());
          const Status status = comm.gather(ConstBuffer(buffer(input)), buffer(output), root);
          ASSERT_TRUE(status.ok()) << status.to_string();
          if (comm.rank() != root) continue;
          ASSERT_EQ(output, expected);
        }
    });
  }
}

TEST_P(RootedAndExchange, scatter_gives_each_rank_its_part_of_the_roots_input) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts)
        for (Rank root = 0; root < comm.size(); ++root) {
          std::vector<float> input, output(count, -1);
          if (comm.rank() == root) input = samples(root, count * comm.size());
          const Status status = comm.scatter(ConstBuffer(buffer(input)), buffer(output), root);
          ASSERT_TRUE(status.ok()) << status.to_string();
          ASSERT_EQ(output, samples(root, count, count * comm.rank()));
        }
    });
  }
}

TEST_P(RootedAndExchange, gather_and_scatter_work_in_place_at_the_root) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    constexpr Rank kRoot = 1;
    constexpr std::size_t kCount = 3000;
    std::vector<float> all(3 * kCount, -1);
    std::vector<float> mine = samples(comm.rank(), kCount);
    std::copy(mine.begin(), mine.end(), all.begin() + kRoot * kCount);
    const Buffer part =
        comm.rank() == kRoot ? Buffer{all.data() + kRoot * kCount, kCount, DType::kFloat32} : buffer(mine);
    ASSERT_TRUE(comm.gather(ConstBuffer(part), buffer(all), kRoot).ok());
    ASSERT_TRUE(comm.scatter(ConstBuffer(buffer(all)), part, kRoot).ok());
    ASSERT_EQ(mine, samples(comm.rank(), kCount));
    if (comm.rank() != kRoot) return;
    ASSERT_EQ(all, gathered(3, kCount));
  });
}

TEST_P(RootedAndExchange, all_to_all_transposes_the_parts) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t count : kCounts) {
        const std::vector<float> expected = gathered(comm.size(), count, count * comm.rank());
        std::vector<float> input = samples(comm.rank(), count * comm.size()), output(input.size());
        const Status status = comm.all_to_all(ConstBuffer(buffer(input)), buffer(output));
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_EQ(output, expected);
        ASSERT_EQ(input, samples(comm.rank(), count * comm.size())) << "the input was written";
        ASSERT_TRUE(comm.all_to_all(ConstBuffer(buffer(input)), buffer(input)).ok());
        ASSERT_EQ(input, expected) << "in place";
      }
    });
  }
}

TEST_P(RootedAndExchange, different_roots_are_reported) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<float> values(16);
    const Status status = comm.reduce(ConstBuffer(buffer(values)), buffer(values), ReduceOp::kSum, comm.rank());
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
  });
}

TEST_P(RootedAndExchange, counts_that_do_not_fit_are_rejected_before_any_rank_waits) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<float> three(3), four(4);
    const auto message = [](const Status& status) { return std::string(status.message()); };
    EXPECT_EQ(message(comm.all_to_all(ConstBuffer(buffer(three)), buffer(three))),
              "all_to_all" + kOfWorld + "input has 3 elements, expected 2 (2 x 1)");
    EXPECT_EQ(message(comm.reduce(ConstBuffer(buffer(three)), buffer(four), ReduceOp::kSum, comm.rank())),
              "reduce" + kOfWorld + "output has 4 elements, expected 3");
    EXPECT_EQ(message(comm.gather(ConstBuffer(buffer(three)), buffer(four), comm.rank())),
              "gather" + kOfWorld + "output has 4 elements, expected 6 (2 x 3)");
    EXPECT_EQ(message(comm.scatter(ConstBuffer(buffer(three)), buffer(four), comm.rank())),
              "scatter" + kOfWorld + "input has 3 elements, expected 8 (2 x 4)");
    EXPECT_EQ(message(comm.scatter(ConstBuffer(buffer(three)), buffer(four), 2)),
              "scatter" + kOfWorld + "root 2 is not a rank of the group, which has ranks 0 to 1");
  });
}

struct RootedChoice {
  std::string name;
  const char *reduce, *gather, *scatter, *all_to_all;
};

std::string table(const RootedChoice& choice, const std::string& slot) {
  return std::string("reduce:0-inf=") + choice.reduce + slot + ";gather:0-inf=" + choice.gather + slot +
         ";scatter:0-inf=" + choice.scatter + slot + ";all_to_all:0-inf=" + choice.all_to_all + slot;
}

std::vector<PlannedCase> rooted_and_exchange_cases() {
  const std::vector<RootedChoice> choices = {
      {"direct", "direct", "direct", "direct", "direct"},
      {"packet", "packet", "packet", "packet", "packet"},
      {"two_shot", "two_shot", "direct", "direct", "pairwise"},
      {"logarithmic", "binomial", "binomial", "binomial", "bruck"},
      {"zero_copy", "direct", "zero_copy", "zero_copy", "zero_copy"},
  };
  std::vector<PlannedCase> all;
  for (const std::string transport : {"inproc", "shm", "ucx"}) {
    all.push_back({transport + "_default", transport, ""});
    for (const RootedChoice& choice : choices) {
      if (!testing::can_run(transport, table(choice, ""))) continue;
      all.push_back({transport + "_" + choice.name, transport, table(choice, "")});
      if (choice.name == "two_shot" || choice.name == "logarithmic" || choice.name == "zero_copy")
        all.push_back({transport + "_" + choice.name + "_in_small_slots", transport, table(choice, "@4k")});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, RootedAndExchange, ::testing::ValuesIn(rooted_and_exchange_cases()), testing::name_of);

}  // namespace
}  // namespace accord
