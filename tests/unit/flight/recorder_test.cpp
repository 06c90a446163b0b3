#include "flight/recorder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "flight/read_record.hpp"
#include "ranks/open_descriptors.hpp"
#include "sanitized.hpp"

namespace accord::flight {
namespace {

using accord::testing::open_descriptors;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kCapacity = 16;

std::unique_ptr<Recorder> make_recorder(std::uint64_t capacity = kCapacity) {
  return Recorder::create({.id = 7, .name = "tp", .rank = 1, .topology = topology::Topology::uniform(3)}, capacity)
      .value();
}

exec::RequestRecord all_reduce_of(std::uint64_t count) {
  return {.collective = Collective::kAllReduce, .dtype = DType::kFloat32, .op = ReduceOp::kMax, .count = count};
}

std::int64_t now() { return Clock::now().time_since_epoch().count(); }

TEST(FlightRecorder, keeps_the_request_and_times_of_an_operation) {
  const auto recorder = make_recorder();
  OrderRecorder order = recorder->collectives();
  const std::int64_t before = now();
  order.begin(1, all_reduce_of(4096), 4 * 4096, recorder->algorithm("two_shot"));
  order.waiting();
  FlightLog log = recorder->read();
  ASSERT_EQ(log.orders.size(), 1u);
  ASSERT_EQ(log.orders[0].operations.size(), 1u);
  EXPECT_EQ(log.orders[0].operations[0].state, OperationState::kRunning);
  EXPECT_FALSE(log.orders[0].operations[0].ended_ns.has_value());
  order.waiting_long(2, true);
  order.end(true);
  const std::int64_t after = now();

  log = recorder->read();
  EXPECT_EQ(log.id, "0000000000000007");
  EXPECT_EQ(log.name, "tp");
  EXPECT_EQ(log.rank, 1);
  EXPECT_EQ(log.size(), 3);
  EXPECT_EQ(log.state, CommunicatorState::kReady);
  const Operation& operation = log.orders[0].operations[0];
  EXPECT_EQ(operation.number, 1u);
  EXPECT_EQ(operation.request, all_reduce_of(4096));
  EXPECT_EQ(operation.algorithm, "two_shot");
  EXPECT_EQ(operation.state, OperationState::kDone);
  EXPECT_EQ(operation.waits_for, 2);
  constexpr std::int64_t kMicrosecond = 1000;  // between a tick and the clock
  EXPECT_GE(*operation.started_ns, before - kMicrosecond);
  EXPECT_GE(*operation.ended_ns, *operation.started_ns);
  EXPECT_LE(*operation.ended_ns, after + kMicrosecond);
}

TEST(FlightRecorder, keeps_the_last_operations_of_each_order) {
  const auto recorder = make_recorder();
  OrderRecorder collectives = recorder->collectives(), sends = recorder->messages(2, Direction::kSend);
  for (std::uint64_t number = 1; number <= 3 * kCapacity + 5; ++number) {
    collectives.begin(number, all_reduce_of(number), 4 * number, 0);
    collectives.end(number % 2 == 0);
  }
  sends.begin(1, {.collective = Collective::kSendRecv, .dtype = DType::kInt8, .count = 3}, 3, 0);
  const FlightLog log = recorder->read();
  ASSERT_EQ(log.orders.size(), 2u);
  ASSERT_EQ(log.orders[0].operations.size(), kCapacity);
  for (std::size_t i = 0; i < kCapacity; ++i) {
    const Operation& operation = log.orders[0].operations[i];
    EXPECT_EQ(operation.number, 2 * kCapacity + 6 + i);
    EXPECT_EQ(operation.request.count, operation.number);
    EXPECT_EQ(operation.state, operation.number % 2 == 0 ? OperationState::kDone : OperationState::kFailed);
  }
  EXPECT_EQ(log.orders[1].direction, Direction::kSend);
  EXPECT_EQ(log.orders[1].peer, 2);
  EXPECT_EQ(log.orders[1].operations[0].request.count, 3u);
}

TEST(FlightRecorder, a_queued_operation_never_replaces_one_that_has_not_ended) {
  const auto recorder = make_recorder();
  OrderRecorder order = recorder->collectives();
  order.begin(1, all_reduce_of(1), 4, 0);
  for (std::uint64_t number = 2; number <= kCapacity + 3; ++number)
    order.queue(number, number - 1, all_reduce_of(number));
  std::vector<Operation> operations = recorder->read().orders[0].operations;
  ASSERT_EQ(operations.size(), kCapacity);
  EXPECT_EQ(operations[0].number, 1u);
  EXPECT_EQ(operations[0].state, OperationState::kRunning);
  EXPECT_EQ(operations[1].state, OperationState::kQueued);
  EXPECT_TRUE(operations[1].queued_ns.has_value());
  EXPECT_FALSE(operations[1].started_ns.has_value());

  order.end(true);
  order.begin(2, all_reduce_of(2), 8, 0);
  EXPECT_TRUE(recorder->read().orders[0].operations[1].queued_ns.has_value());
  order.end(false);
  order.drop(3);
  operations = recorder->read().orders[0].operations;
  EXPECT_EQ(operations[2].state, OperationState::kFailed);
  EXPECT_EQ(recorder->read().orders[0].last_begun()->number, 2u);  // 3 never began
}

TEST(FlightRecorder, concurrent_reads_are_consistent) {
  const auto recorder = make_recorder();
  const std::uint64_t least = accord::testing::kSanitized ? 20'000 : 1'000'000;
  constexpr int kPolls = 20;  // reads that the writer waits for, however late the reader starts
  std::uint64_t last = 0;
  std::atomic<int> polls = 0;
  std::atomic<bool> done = false;
  const std::uint64_t algorithm = recorder->algorithm("ring");
  std::jthread writer([&](const std::stop_token& stop) {  // stopped and joined even after a failure
    OrderRecorder order = recorder->collectives();
    while (!stop.stop_requested() && (last < least || polls < kPolls)) {
      const std::uint64_t number = ++last;
      order.begin(number, all_reduce_of(3 * number), 12 * number, algorithm);
      if (number % 3 == 0) order.waiting_long(static_cast<Rank>(number % 3), true);
      order.end(number % 2 == 0);
    }
    done = true;
  });
  while (!done) {
    const FlightLog log = recorder->read();
    if (log.orders.empty()) continue;
    ++polls;
    for (const Operation& operation : log.orders[0].operations) {
      ASSERT_EQ(operation.request, all_reduce_of(3 * operation.number));
      ASSERT_EQ(operation.algorithm, "ring");
      if (operation.state != OperationState::kRunning) {
        ASSERT_EQ(operation.state, operation.number % 2 == 0 ? OperationState::kDone : OperationState::kFailed);
        ASSERT_LE(*operation.started_ns, *operation.ended_ns);
      }
    }
  }
  writer.join();
  const Counters counters = recorder->counters();
  EXPECT_EQ(counters.of(Collective::kAllReduce).calls, last);
  EXPECT_EQ(counters.of(Collective::kAllReduce).bytes, 4 * 3 * last * (last + 1) / 2);
  EXPECT_EQ(counters.failures, (last + 1) / 2);
  EXPECT_EQ(counters.waits, last / 3);
}

TEST(FlightRecorder, the_first_failure_is_kept) {
  const auto recorder = make_recorder();
  recorder->set_failure(Status(StatusCode::kTimeout, "rank 2 did not arrive", {2}));
  recorder->set_state(CommunicatorState::kFailed);
  recorder->set_failure(Status(StatusCode::kAborted, "later", {0}));
  const FlightLog log = recorder->read();
  ASSERT_TRUE(log.failure.has_value());
  EXPECT_EQ(log.failure->code, StatusCode::kTimeout);
  EXPECT_EQ(log.failure->message, "rank 2 did not arrive");
  EXPECT_THAT(log.failure->ranks, ElementsAre(2));
  EXPECT_EQ(log.state, CommunicatorState::kFailed);
}

TEST(FlightRecorder, algorithms_beyond_the_name_table_have_no_name) {
  const auto recorder = make_recorder();
  for (std::size_t i = 0; i < kMaxAlgorithms; ++i) EXPECT_EQ(recorder->algorithm(fmt::format("a{}", i)), i + 1);
  EXPECT_EQ(recorder->algorithm("one_more"), 0u);
  EXPECT_EQ(recorder->algorithm("a5"), 6u);
}

TEST(FlightRecorder, the_record_of_a_closed_communicator_is_cleared_and_reused) {
  const auto first = make_recorder();
  {
    const auto closed = make_recorder();
    OrderRecorder order = closed->collectives();
    order.begin(1, all_reduce_of(1), 4, closed->algorithm("ring"));
    closed->set_failure(Status(StatusCode::kTimeout, "late"));
  }
  const auto next = make_recorder();
  EXPECT_THAT(next->read().orders, IsEmpty());
  EXPECT_FALSE(next->read().failure.has_value());
  EXPECT_EQ(next->read().name, "tp");
}

/// Returns the bytes of this process that are in shared memory.
std::size_t shared_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "RssShmem:") {
      status >> word;
      return std::stoul(word) * 1024;
    }
  return 0;
}

TEST(FlightRecorder, hundreds_of_communicators_use_one_descriptor_and_memory_for_their_operations) {
  const auto first = make_recorder(1024);
  const std::size_t descriptors = open_descriptors();
  const std::size_t before = shared_memory();
  std::vector<std::unique_ptr<Recorder>> recorders;
  constexpr std::size_t kMany = 512;
  for (std::size_t i = 0; i < kMany; ++i) {
    recorders.push_back(make_recorder(1024));
    OrderRecorder order = recorders.back()->collectives();
    for (std::uint64_t number = 1; number <= 10; ++number) {
      order.begin(number, all_reduce_of(1), 4, 0);
      order.end(true);
    }
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  // Two pages of header and one or two of operations for each; they could have used 448 KiB each.
  EXPECT_LE(shared_memory() - before, kMany * 4 * kPage);
  recorders.clear();
  EXPECT_LE(shared_memory(), before + kMany * kPage);  // the page that a reader needs remains
}

TEST(FlightRecorder, bytes_that_are_not_a_record_are_rejected) {
  std::vector<std::uint64_t> words(RecordLayout::of(3, kCapacity).bytes / 8, 0);
  const auto bytes = std::as_bytes(std::span(words));
  EXPECT_EQ(read_record(bytes, {}).status().code(), StatusCode::kCorrupt);
  auto& header = *reinterpret_cast<RecordHeader*>(words.data());
  header.magic = kRecordMagic;
  header.life = 1;
  header.size = 3;
  header.capacity = kCapacity;
  EXPECT_TRUE(read_record(bytes, {}).ok());
  EXPECT_EQ(read_record(bytes.first(bytes.size() - kPage), {}).status().code(), StatusCode::kCorrupt);
  for (const std::uint64_t capacity : {std::uint64_t{0}, std::uint64_t{17}, std::uint64_t{1} << 62}) {
    header.capacity = capacity;
    EXPECT_EQ(read_record(bytes, {}).status().code(), StatusCode::kCorrupt);
  }
  header.capacity = kCapacity;
  header.life = 2;
  EXPECT_FALSE(read_record(bytes, {}).value().has_value());
}

}  // namespace
}  // namespace accord::flight
