// The "_v" collectives for every transport and algorithm, with unequal counts, compared bit for bit with the plain
// computation.
#include <gtest/gtest.h>

#include <numeric>

#include "conformance/comm/planned.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::buffer;
using testing::combined;
using testing::kOfWorld;
using testing::kSizes;
using testing::PlannedCase;
using testing::run_thread_ranks;
using testing::samples;

using Counts = std::vector<std::size_t>;

class UnequalParts : public testing::Planned {};

std::size_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::size_t{0}); }
std::size_t before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

/// Returns sets of unequal counts: no elements, a few, and more than a slot.
std::vector<Counts> divisions(int size) {
  std::vector<Counts> all;
  for (const std::size_t scale : {0, 1, 131, testing::kSanitized ? 1999 : 9001}) {
    Counts counts;
    for (int rank = 0; rank < size; ++rank) counts.push_back(scale * static_cast<std::size_t>((rank * 5 + 3) % 4));
    all.push_back(counts);
  }
  Counts only_last(static_cast<std::size_t>(size), 0);
  only_last.back() = 777;
  all.push_back(only_last);
  return all;
}

/// Returns the number of elements that rank `from` sends to rank `to`.
std::size_t elements(int from, int to, std::size_t scale) {
  return scale * static_cast<std::size_t>((from * 7 + to * 3) % 5) + static_cast<std::size_t>(from == 0);
}

/// Returns the values of the own part of `rank`.
std::vector<float> part_of(int rank, const Counts& counts) {
  return samples(rank, counts[static_cast<std::size_t>(rank)]);
}

std::vector<float> parts_of_all(const Counts& counts) {
  std::vector<float> all;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const std::vector<float> part = part_of(static_cast<int>(rank), counts);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST_P(UnequalParts, all_gather_v_gives_every_rank_all_parts_in_rank_order) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const Counts& counts : divisions(comm.size())) {
        std::vector<float> input = part_of(comm.rank(), counts), output(sum(counts), -1);
        const Status status = comm.all_gather_v(ConstBuffer(buffer(input)), buffer(output), counts);
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_EQ(output, parts_of_all(counts));
        std::fill(output.begin(), output.end(), -1.0F);
        std::copy(input.begin(), input.end(), output.begin() + before(counts, comm.rank()));
        const ConstBuffer own(output.data() + before(counts, comm.rank()), input.size(), DType::kFloat32);
        ASSERT_TRUE(comm.all_gather_v(own, buffer(output), counts).ok());
        ASSERT_EQ(output, parts_of_all(counts)) << "in place";
      }
    });
  }
}

TEST_P(UnequalParts, reduce_scatter_v_gives_each_rank_its_part_of_the_canonical_sum) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const Counts& counts : divisions(comm.size())) {
        std::vector<float> input = samples(comm.rank(), sum(counts));
        std::vector<float> output(counts[static_cast<std::size_t>(comm.rank())], -1);
        const Status status = comm.reduce_scatter_v(ConstBuffer(buffer(input)), buffer(output), counts, ReduceOp::kSum);
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_EQ(output, combined(ReduceOp::kSum, comm.size(), output.size(), before(counts, comm.rank())));
      }
    });
  }
}

TEST_P(UnequalParts, gather_v_gives_the_root_all_parts_and_scatter_v_returns_them) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const Counts& counts : divisions(comm.size()))
        for (Rank root = 0; root < comm.size(); ++root) {
          const bool is_root = comm.rank() == root;
          std::vector<float> input = part_of(comm.rank(), counts), all(is_root ? sum(counts) : 0, -1);
          const Counts given = is_root ? counts : Counts();
          Status status = comm.gather_v(ConstBuffer(buffer(input)), buffer(all), given, root);
          ASSERT_TRUE(status.ok()) << status.to_string();
          ASSERT_EQ(all, is_root ? parts_of_all(counts) : std::vector<float>());
          std::vector<float> output(input.size(), -1);
          status = comm.scatter_v(ConstBuffer(buffer(all)), buffer(output), given, root);
          ASSERT_TRUE(status.ok()) << status.to_string();
          ASSERT_EQ(output, part_of(comm.rank(), counts));
        }
    });
  }
}

TEST_P(UnequalParts, all_to_all_v_sends_each_part_to_its_rank_synchronously_and_as_a_work) {
  for (const int size : kSizes) {
    run_thread_ranks(size, options(), [](Communicator comm) {
      for (const std::size_t scale : {0, 1, 60, testing::kSanitized ? 999 : 5001}) {
        Counts input_counts, output_counts;
        std::vector<float> input, expected;
        for (int peer = 0; peer < comm.size(); ++peer) {
          input_counts.push_back(elements(comm.rank(), peer, scale));
          output_counts.push_back(elements(peer, comm.rank(), scale));
          const std::vector<float> to = samples(comm.rank(), input_counts.back(), static_cast<std::size_t>(peer));
          const std::vector<float> from = samples(peer, output_counts.back(), static_cast<std::size_t>(comm.rank()));
          input.insert(input.end(), to.begin(), to.end());
          expected.insert(expected.end(), from.begin(), from.end());
        }
        std::vector<float> output(expected.size(), -1), later(expected.size(), -1);
        Work work = [&] {
          const Counts for_the_start = input_counts, of_output = output_counts;  // destroyed before the work runs
          return comm.all_to_all_v_async(ConstBuffer(buffer(input)), for_the_start, buffer(later), of_output);
        }();
        const Status status =
            comm.all_to_all_v(ConstBuffer(buffer(input)), input_counts, buffer(output), output_counts);
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_TRUE(work.wait().ok());
        ASSERT_EQ(output, expected);
        ASSERT_EQ(later, expected);
      }
    });
  }
}

TEST_P(UnequalParts, all_to_all_v_works_in_place_where_both_counts_are_equal) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    Counts counts;
    std::vector<float> values, expected;
    for (int peer = 0; peer < 3; ++peer) {
      counts.push_back(static_cast<std::size_t>(1000 * (comm.rank() + peer)));
      const auto first = static_cast<std::size_t>(peer), mine = static_cast<std::size_t>(comm.rank());
      const std::vector<float> to = samples(comm.rank(), counts.back(), first),
                               from = samples(peer, counts.back(), mine);
      values.insert(values.end(), to.begin(), to.end());
      expected.insert(expected.end(), from.begin(), from.end());
    }
    ASSERT_TRUE(comm.all_to_all_v(ConstBuffer(buffer(values)), counts, buffer(values), counts).ok());
    ASSERT_EQ(values, expected);
  });
}

TEST_P(UnequalParts, counts_on_which_ranks_disagree_fail_on_all_of_them) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    const Counts counts = comm.rank() == 0 ? Counts{3, 3} : Counts{2, 4};
    std::vector<float> input(counts[static_cast<std::size_t>(comm.rank())]), output(6);
    const Status status = comm.all_gather_v(ConstBuffer(buffer(input)), buffer(output), counts);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
  });
  run_thread_ranks(2, options(), [](Communicator comm) {
    const Counts sends = {1, 5}, expects = comm.rank() == 0 ? Counts{1, 1} : Counts{4, 5};
    std::vector<float> input(6), output(sum(expects));
    const Status status = comm.all_to_all_v(ConstBuffer(buffer(input)), sends, buffer(output), expects);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_NE(status.message().find("rank 0 sends 5 x float32 to rank 1, which expects 4"), std::string::npos)
        << status.to_string();
  });
  for (const bool scatters : {false, true}) {
    run_thread_ranks(3, options(), [scatters](Communicator comm) {
      std::vector<float> all(6), mine(comm.rank() == 2 ? 3 : 2);
      const Counts counts = {2, 2, 2};
      constexpr Rank kRoot = 1;
      Status status = scatters ? comm.scatter_v(ConstBuffer(buffer(all)), buffer(mine), counts, kRoot)
                               : comm.gather_v(ConstBuffer(buffer(mine)), buffer(all), counts, kRoot);
      // A rank that only sends does not wait for other ranks; it is notified of the failure at its next call.
      if (status.ok()) status = comm.barrier();
      EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
      const char* expected = scatters ? "rank 1 sends 2 x float32 to rank 2, which expects 3"
                                      : "rank 2 sends 3 x float32 to rank 1, which expects 2";
      EXPECT_NE(status.message().find(expected), std::string::npos) << status.to_string();
    });
  }
}

TEST_P(UnequalParts, a_rank_that_calls_the_equal_parts_form_is_reported) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<float> input(4), output(4);
    const Counts counts = {2, 2};
    const Status status = comm.rank() == 0
                              ? comm.all_to_all(ConstBuffer(buffer(input)), buffer(output))
                              : comm.all_to_all_v(ConstBuffer(buffer(input)), counts, buffer(output), counts);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_NE(status.message().find("all_to_all_v"), std::string::npos) << status.to_string();
  });
}

TEST_P(UnequalParts, counts_that_do_not_fit_are_rejected_before_any_rank_waits) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::vector<float> three(3), four(4);
    const auto message = [](const Status& status) { return std::string(status.message()); };
    const Counts one = {3}, five = {2, 3}, huge = {SIZE_MAX, 5}, even = {2, 2}, uneven = {3, 1};
    const ConstBuffer in(buffer(three));
    EXPECT_EQ(message(comm.all_gather_v(in, buffer(four), one)),
              "all_gather_v" + kOfWorld + "1 counts of the output are given, expected one for each of 2 ranks");
    EXPECT_EQ(message(comm.all_gather_v(in, buffer(four), five)),
              "all_gather_v" + kOfWorld + "output has 4 elements, but its counts add up to 5");
    EXPECT_EQ(message(comm.all_gather_v(in, buffer(four), huge)),
              "all_gather_v" + kOfWorld + "the counts of the output overflow");
    EXPECT_EQ(message(comm.all_gather_v(in, buffer(four), even)),
              "all_gather_v" + kOfWorld + "this rank's own part has 3 elements in the input, 2 in the output");
    EXPECT_EQ(message(comm.gather_v(in, buffer(four), even, comm.rank())),
              "gather_v" + kOfWorld + "this rank's own part has 3 elements in the input, 2 in the output");
    EXPECT_EQ(message(comm.all_to_all_v(ConstBuffer(buffer(four)), even, buffer(four), uneven)),
              "all_to_all_v" + kOfWorld + "this rank's own part has 2 elements in the input, " +
                  (comm.rank() == 0 ? "3" : "1") + " in the output");
    EXPECT_TRUE(comm.barrier().ok());
    Call barrier;
    barrier.division = Division::kByCounts;
    EXPECT_EQ(message(comm.run(barrier)), "barrier_v" + kOfWorld + "it has no parts that counts could be given for");
    Call message_call = Call::send(in, 1 - comm.rank());
    message_call.division = Division::kByCounts;
    EXPECT_EQ(message(comm.run(message_call)),
              "send" + kOfWorld + "a message has no parts that counts could be given for");
  });
}

TEST_P(UnequalParts, all_to_all_v_in_place_is_rejected_where_the_counts_differ) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    const std::vector<Counts> input_counts = {{1, 2, 0}, {2, 1, 0}, {2, 0, 1}};
    const std::vector<Counts> output_counts = {{1, 0, 2}, {0, 1, 2}, {0, 2, 1}};
    std::vector<float> values(3);
    const auto mine = static_cast<std::size_t>(comm.rank());
    const Status status =
        comm.all_to_all_v(ConstBuffer(buffer(values)), input_counts[mine], buffer(values), output_counts[mine]);
    EXPECT_EQ(status.message(),
              "all_to_all_v on group \"world\" (ranks 0-2): in place it needs the same counts for input and output");
    EXPECT_TRUE(comm.barrier().ok());
  });
}

struct PartsChoice {
  std::string name;
  const char *all_gather, *reduce_scatter, *gather, *scatter, *all_to_all;
};

std::vector<PlannedCase> parts_cases() {
  const std::vector<PartsChoice> choices = {
      {"direct", "direct", "direct", "direct", "direct", "direct"},
      {"packet", "packet", "packet", "packet", "packet", "packet"},
      {"logarithmic", "bruck", "recursive_halving", "binomial", "binomial", "bruck"},
      {"neighbours", "recursive_doubling", "recursive_halving", "direct", "direct", "pairwise"},
      {"ring", "ring", "direct", "direct", "direct", "direct"},
  };
  std::vector<PlannedCase> all;
  for (const std::string transport : {"inproc", "shm", "ucx"}) {
    all.push_back({transport + "_default", transport, ""});
    for (const PartsChoice& choice : choices)
      for (const std::string slot : {"", "@4k"}) {
        const std::string table = std::string("all_gather:0-inf=") + choice.all_gather + slot +
                                  ";reduce_scatter:0-inf=" + choice.reduce_scatter + slot +
                                  ";gather:0-inf=" + choice.gather + slot + ";scatter:0-inf=" + choice.scatter + slot +
                                  ";all_to_all:0-inf=" + choice.all_to_all + slot;
        if (!testing::can_run(transport, table)) continue;
        all.push_back({transport + "_" + choice.name + (slot.empty() ? "" : "_in_small_slots"), transport, table});
      }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, UnequalParts, ::testing::ValuesIn(parts_cases()), testing::name_of);

}  // namespace
}  // namespace accord
