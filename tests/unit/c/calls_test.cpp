// Every call of the C interface, by its function, by accord_run and by accord_start, compared with results that are
// computed here element by element.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "conformance/comm/reference.hpp"
#include "unit/c/c99_rank.h"
#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using testing::is_ok;
using testing::run_c_ranks;
using testing::sample;

enum class Way { kByName, kRun, kStart, kPrepared };

std::string to_string(Way way) {
  static const std::array<std::string, 4> names = {"by_name", "run", "start", "prepared"};
  return names[static_cast<size_t>(way)];
}

accord_status_t by_name(accord_communicator_t* comm, const accord_call_t& call, size_t count) {
  void* const in = const_cast<void*>(call.input);
  const accord_dtype_t dtype = call.dtype;
  switch (call.kind) {
    case ACCORD_CALL_BARRIER: return accord_barrier(comm, nullptr);
    case ACCORD_CALL_BROADCAST: return accord_broadcast(comm, call.output, count, dtype, call.root, nullptr);
    case ACCORD_CALL_ALL_GATHER: return accord_all_gather(comm, in, call.output, count, dtype, nullptr);
    case ACCORD_CALL_REDUCE_SCATTER:
      return accord_reduce_scatter(comm, in, call.output, count, dtype, call.op, nullptr);
    case ACCORD_CALL_ALL_REDUCE: return accord_all_reduce(comm, in, call.output, count, dtype, call.op, nullptr);
    case ACCORD_CALL_REDUCE: return accord_reduce(comm, in, call.output, count, dtype, call.op, call.root, nullptr);
    case ACCORD_CALL_GATHER: return accord_gather(comm, in, call.output, count, dtype, call.root, nullptr);
    case ACCORD_CALL_SCATTER: return accord_scatter(comm, in, call.output, count, dtype, call.root, nullptr);
    case ACCORD_CALL_ALL_TO_ALL: return accord_all_to_all(comm, in, call.output, count, dtype, nullptr);
    case ACCORD_CALL_SEND: return accord_send(comm, in, count, dtype, call.peer, nullptr);
    case ACCORD_CALL_RECV: return accord_recv(comm, call.output, count, dtype, call.peer, nullptr);
    case ACCORD_CALL_ALL_GATHER_V:
      return accord_all_gather_v(comm, in, call.output, call.output_counts, dtype, nullptr);
    case ACCORD_CALL_REDUCE_SCATTER_V:
      return accord_reduce_scatter_v(comm, in, call.output, call.input_counts, dtype, call.op, nullptr);
    case ACCORD_CALL_GATHER_V:
      return accord_gather_v(comm, in, call.input_count, call.output, call.output_counts, dtype, call.root, nullptr);
    case ACCORD_CALL_SCATTER_V:
      return accord_scatter_v(comm, in, call.input_counts, call.output, call.output_count, dtype, call.root, nullptr);
    case ACCORD_CALL_ALL_TO_ALL_V:
      return accord_all_to_all_v(comm, in, call.input_counts, call.output, call.output_counts, dtype, nullptr);
    default: return ACCORD_INTERNAL;
  }
}

class Calls : public ::testing::TestWithParam<std::tuple<int, Way>> {
 protected:
  /// Elements per part: an odd number, and more than fit into a packet.
  static constexpr size_t kCount = 1237;

  static int size() { return std::get<0>(GetParam()); }
  static int last() { return size() - 1; }

  static accord_status_t perform(accord_communicator_t* comm, const accord_call_t& call) {
    switch (std::get<1>(GetParam())) {
      case Way::kByName: return by_name(comm, call, kCount);
      case Way::kRun: return accord_run(comm, &call, nullptr);
      case Way::kPrepared: return prepared(comm, call);
      case Way::kStart: break;
    }
    accord_work_t* work = nullptr;
    EXPECT_TRUE(is_ok(accord_start(comm, &call, nullptr, &work)));
    const accord_status_t status = accord_work_wait(work);
    accord_work_free(work);
    return status;
  }

  static accord_status_t prepared(accord_communicator_t* comm, const accord_call_t& call) {
    accord_prepared_t* ready = nullptr;
    const accord_status_t status = accord_prepare(comm, &call, 1, nullptr, &ready);
    EXPECT_EQ(ready == nullptr, status != ACCORD_OK);
    if (status != ACCORD_OK) return status;
    const accord_status_t ran = accord_prepared_run(ready);
    accord_prepared_free(ready);
    return ran;
  }

  static accord_call_t call(accord_call_kind_t kind, const std::vector<float>& input, std::vector<float>& output) {
    accord_call_t call = ACCORD_CALL_INIT;
    call.kind = kind;
    call.dtype = ACCORD_FLOAT32;
    if (!input.empty()) call.input = input.data();
    call.input_count = input.size();
    if (!output.empty()) call.output = output.data();
    call.output_count = output.size();
    return call;
  }

  /// Returns elements [first, first + count) of the input of `rank`.
  static std::vector<float> values_of(int rank, size_t first, size_t count) {
    std::vector<float> values;
    for (size_t i = first; i < first + count; ++i) values.push_back(sample(rank, i));
    return values;
  }
  static std::vector<float> reduced(ReduceOp op, size_t first, size_t count) {
    std::vector<float> result;
    for (size_t i = first; i < first + count; ++i) {
      std::vector<float> of_ranks;
      for (int rank = 0; rank < size(); ++rank) of_ranks.push_back(sample(rank, i));
      result.push_back(testing::combine(op, of_ranks));
    }
    return result;
  }
  /// Returns `part(rank)` of every rank, one after the other.
  template <typename Part>
  static std::vector<float> joined(Part part) {
    std::vector<float> all;
    for (int rank = 0; rank < size(); ++rank) {
      const std::vector<float> values = part(rank);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

TEST_P(Calls, all_reduce_combines_in_the_canonical_order) {
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    for (const auto& [number, op] :
         {std::pair{ACCORD_SUM, ReduceOp::kSum}, {ACCORD_MIN, ReduceOp::kMin}, {ACCORD_MAX, ReduceOp::kMax}}) {
      const std::vector<float> input = values_of(rank, 0, kCount);
      std::vector<float> output(kCount), in_place = input;
      accord_call_t made = call(ACCORD_CALL_ALL_REDUCE, input, output);
      made.op = number;
      EXPECT_TRUE(is_ok(perform(comm, made)));
      EXPECT_EQ(output, reduced(op, 0, kCount));
      made.input = made.output = in_place.data();
      EXPECT_TRUE(is_ok(perform(comm, made)));
      EXPECT_EQ(in_place, output);
    }
  });
}

TEST_P(Calls, reduce_gives_the_result_only_to_the_root) {
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    std::vector<float> output(rank == last() ? kCount : 0);
    const std::vector<float> input = values_of(rank, 0, kCount);
    accord_call_t made = call(ACCORD_CALL_REDUCE, input, output);
    made.op = ACCORD_MAX;
    made.root = last();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    if (rank == last()) {
      EXPECT_EQ(output, reduced(ReduceOp::kMax, 0, kCount));
    }
  });
}

TEST_P(Calls, reduce_scatter_gives_each_rank_its_part) {
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    const std::vector<float> input = values_of(rank, 0, kCount * size());
    std::vector<float> output(kCount);
    EXPECT_TRUE(is_ok(perform(comm, call(ACCORD_CALL_REDUCE_SCATTER, input, output))));
    EXPECT_EQ(output, reduced(ReduceOp::kSum, rank * kCount, kCount));
  });
}

TEST_P(Calls, all_gather_and_gather_join_the_parts_in_rank_order) {
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    const std::vector<float> input = values_of(rank, 0, kCount);
    const std::vector<float> expected = joined([](int of) { return values_of(of, 0, kCount); });
    std::vector<float> everywhere(kCount * size()), at_root(rank == last() ? kCount * size() : 0);
    EXPECT_TRUE(is_ok(perform(comm, call(ACCORD_CALL_ALL_GATHER, input, everywhere))));
    EXPECT_EQ(everywhere, expected);
    accord_call_t made = call(ACCORD_CALL_GATHER, input, at_root);
    made.root = last();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    if (rank == last()) {
      EXPECT_EQ(at_root, expected);
    }
  });
}

TEST_P(Calls, scatter_and_broadcast_distribute_the_roots_data) {
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    const std::vector<float> input = rank == last() ? values_of(rank, 0, kCount * size()) : std::vector<float>();
    std::vector<float> output(kCount);
    accord_call_t made = call(ACCORD_CALL_SCATTER, input, output);
    made.root = last();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    EXPECT_EQ(output, values_of(last(), rank * kCount, kCount));
    made = call(ACCORD_CALL_BROADCAST, output, output);
    made.root = last();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    EXPECT_EQ(output, values_of(last(), last() * kCount, kCount));
  });
}

TEST_P(Calls, all_to_all_transposes_the_parts) {
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    const std::vector<float> input = values_of(rank, 0, kCount * size());
    std::vector<float> output(kCount * size());
    EXPECT_TRUE(is_ok(perform(comm, call(ACCORD_CALL_ALL_TO_ALL, input, output))));
    EXPECT_EQ(output, joined([&](int from) { return values_of(from, rank * kCount, kCount); }));
  });
}

TEST_P(Calls, parts_of_unequal_counts_are_gathered_scattered_and_combined) {
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    std::vector<size_t> counts;  // 0, 500, 1000, ...
    for (int of = 0; of < size(); ++of) counts.push_back(500 * static_cast<size_t>(of));
    const size_t own = counts[static_cast<size_t>(rank)], before = 250 * static_cast<size_t>(rank * (rank - 1));
    const std::vector<float> mine = values_of(rank, 0, own);
    const std::vector<float> all = joined([&](int of) { return values_of(of, 0, counts[static_cast<size_t>(of)]); });
    std::vector<float> everywhere(all.size()), at_root(rank == last() ? all.size() : 0), back(own), part(own);

    accord_call_t made = call(ACCORD_CALL_ALL_GATHER_V, mine, everywhere);
    made.output_counts = counts.data();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    EXPECT_EQ(everywhere, all);

    made = call(ACCORD_CALL_GATHER_V, mine, at_root);
    made.root = last();
    if (rank == last()) made.output_counts = counts.data();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    EXPECT_EQ(at_root, rank == last() ? all : std::vector<float>());

    made = call(ACCORD_CALL_SCATTER_V, at_root, back);
    made.root = last();
    if (rank == last()) made.input_counts = counts.data();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    EXPECT_EQ(back, mine);

    const std::vector<float> input = values_of(rank, 0, all.size());
    made = call(ACCORD_CALL_REDUCE_SCATTER_V, input, part);
    made.op = ACCORD_MAX;
    made.input_counts = counts.data();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    EXPECT_EQ(part, reduced(ReduceOp::kMax, before, own));
  });
}

TEST_P(Calls, all_to_all_v_sends_each_part_to_its_rank) {
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    const auto elements = [](int from, int to) { return static_cast<size_t>(100 * from + 7 * to); };
    std::vector<size_t> input_counts, output_counts;
    for (int peer = 0; peer < size(); ++peer) {
      input_counts.push_back(elements(rank, peer));
      output_counts.push_back(elements(peer, rank));
    }
    const auto part = [&](int from, int to) {
      return values_of(from, 1000 * static_cast<size_t>(to), elements(from, to));
    };
    const std::vector<float> input = joined([&](int to) { return part(rank, to); });
    const std::vector<float> expected = joined([&](int from) { return part(from, rank); });
    std::vector<float> output(expected.size());
    accord_call_t made = call(ACCORD_CALL_ALL_TO_ALL_V, input, output);
    made.input_counts = input_counts.data();
    made.output_counts = output_counts.data();
    EXPECT_TRUE(is_ok(perform(comm, made)));
    EXPECT_EQ(output, expected);
  });
}

TEST_P(Calls, each_rank_sends_a_message_to_the_next) {
  if (size() == 1) return;  // no peer to send to
  run_c_ranks(size(), [](accord_communicator_t* comm, int rank) {
    const std::vector<float> input = values_of(rank, 0, kCount);
    std::vector<float> none, output(kCount);
    accord_call_t send = call(ACCORD_CALL_SEND, input, none), recv = call(ACCORD_CALL_RECV, {}, output);
    send.peer = (rank + 1) % size();
    recv.peer = (rank + last()) % size();
    for (const accord_call_t& made : rank == 0 ? std::vector{send, recv} : std::vector{recv, send})
      EXPECT_TRUE(is_ok(perform(comm, made)));
    EXPECT_EQ(output, values_of((rank + last()) % size(), 0, kCount));
  });
}

TEST_P(Calls, no_rank_leaves_a_barrier_before_all_arrive) {
  std::atomic<int> arrived = 0;
  run_c_ranks(size(), [&](accord_communicator_t* comm, int) {
    std::vector<float> none;
    ++arrived;
    EXPECT_TRUE(is_ok(perform(comm, call(ACCORD_CALL_BARRIER, none, none))));
    EXPECT_EQ(arrived.load(), size());
  });
}

TEST(Messages, match_receives_with_their_tag_and_receives_from_any_rank) {
  run_c_ranks(3, [](accord_communicator_t* comm, int rank) {
    int32_t value = 0;
    accord_call_t message = ACCORD_CALL_INIT;
    message.kind = rank == 0 ? ACCORD_CALL_RECV : ACCORD_CALL_SEND;
    message.dtype = ACCORD_INT32;
    message.input = message.output = &value;
    message.input_count = message.output_count = 1;
    if (rank > 0) {
      for (message.tag = 0; message.tag < 3; ++message.tag) {
        value = 10 * rank + message.tag;
        EXPECT_TRUE(is_ok(accord_run(comm, &message, nullptr)));
      }
      message.tag = -1;
      EXPECT_EQ(accord_run(comm, &message, nullptr), ACCORD_INVALID_ARGUMENT);
      return;
    }
    for (const auto& [source, tag] : {std::pair{2, 2}, {1, 1}}) {
      message.peer = source;
      message.tag = tag;
      EXPECT_TRUE(is_ok(accord_run(comm, &message, nullptr)));
      EXPECT_EQ(value, 10 * source + tag);
    }
    int32_t source = 0;
    int32_t sources = 0;
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(is_ok(accord_recv_any(comm, &value, 1, ACCORD_INT32, 0, nullptr, &source)));
      EXPECT_EQ(value, 10 * source);
      sources += source;
    }
    EXPECT_EQ(sources, 3);
    EXPECT_TRUE(is_ok(accord_recv_any(comm, &value, 1, ACCORD_INT32, 2, nullptr, &source)));
    EXPECT_EQ(source, 1);
    EXPECT_EQ(value, 12);
    EXPECT_EQ(accord_recv_any(comm, &value, 1, ACCORD_INT32, 0, nullptr, nullptr), ACCORD_INVALID_ARGUMENT);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Calls,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::Values(Way::kByName, Way::kRun, Way::kStart, Way::kPrepared)),
                         [](const auto& test) {
                           return to_string(std::get<1>(test.param)) + "_" + std::to_string(std::get<0>(test.param));
                         });

TEST(Batches, run_messages_in_any_order_together_with_collectives) {
  for (const bool starts : {false, true})
    run_c_ranks(3, [starts](accord_communicator_t* comm, int rank) {
      std::vector<double> mine(5000, rank), theirs(5000), sum(5000, rank + 1);
      std::vector<accord_call_t> calls(3, accord_call_t ACCORD_CALL_INIT);
      for (accord_call_t& call : calls) call.dtype = ACCORD_FLOAT64;
      calls[0].kind = ACCORD_CALL_RECV;
      calls[0].output = theirs.data();
      calls[0].output_count = theirs.size();
      calls[0].peer = (rank + 2) % 3;
      calls[1].kind = ACCORD_CALL_ALL_REDUCE;
      calls[1].input = calls[1].output = sum.data();
      calls[1].input_count = calls[1].output_count = sum.size();
      calls[2].kind = ACCORD_CALL_SEND;
      calls[2].input = mine.data();
      calls[2].input_count = mine.size();
      calls[2].peer = (rank + 1) % 3;
      if (starts) {
        accord_work_t* work = nullptr;
        ASSERT_TRUE(is_ok(accord_start_batch(comm, calls.data(), calls.size(), nullptr, &work)));
        std::atomic<int> reported = -1;
        ASSERT_TRUE(is_ok(accord_work_on_end(
            work, [](accord_status_t status, void* context) { *static_cast<std::atomic<int>*>(context) = status; },
            &reported)));
        EXPECT_TRUE(is_ok(accord_work_wait(work)));
        while (reported.load() < 0) std::this_thread::yield();
        EXPECT_EQ(reported.load(), ACCORD_OK);
        accord_work_free(work);
      } else {
        EXPECT_TRUE(is_ok(accord_run_batch(comm, calls.data(), calls.size(), nullptr)));
      }
      EXPECT_EQ(theirs, std::vector<double>(5000, (rank + 2) % 3));
      EXPECT_EQ(sum, std::vector<double>(5000, 6));
    });
}

TEST(Batches, with_an_invalid_call_or_struct_size_do_not_start) {
  run_c_ranks(1, [](accord_communicator_t* comm, int) {
    float value = 2;
    std::vector<accord_call_t> calls(2, testing::call_on(ACCORD_CALL_ALL_REDUCE, ACCORD_FLOAT32, &value));
    calls[1].kind = 99;
    EXPECT_EQ(accord_run_batch(comm, calls.data(), 2, nullptr), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(),
                ::testing::HasSubstr("call 2 of 2: accord_run_batch: kind 99 is not defined in accord.h"));
    calls[1] = calls[0];
    calls[1].struct_size -= 8;
    EXPECT_EQ(accord_run_batch(comm, calls.data(), 2, nullptr), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(),
                ::testing::HasSubstr("call 2 of 2 has a struct_size of 80, but the first one has 88"));
    EXPECT_TRUE(is_ok(accord_run_batch(comm, calls.data(), 0, nullptr)));
  });
}

TEST(CallsInC, a_program_in_c99_makes_every_call) {
  for (const int size : {2, 3})
    testing::run_store_ranks(size, [&](accord_store_t* store, int rank) {
      EXPECT_EQ(run_c99_rank(store, rank, size), 0) << accord_last_error();
    });
}

}  // namespace
}  // namespace accord
