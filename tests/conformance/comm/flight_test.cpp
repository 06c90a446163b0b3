// The entries that communicators leave in the flight recorder, and their counters.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/fd.hpp"
#include "ranks/process_ranks.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using testing::run_thread_ranks;
using testing::TemporaryDirectory;

CommunicatorOptions options(std::string select = "") {
  CommunicatorOptions options;
  options.name = "seen";
  options.timeout = std::chrono::seconds(30);
  options.select = std::move(select);
  return options;
}

Json dump_of(const Communicator& comm, const TemporaryDirectory& directory) {
  const Result<std::string> path = comm.dump(directory.path());
  EXPECT_TRUE(path.ok()) << path.status().to_string();
  return path.ok() ? Json::parse(read_file(*path).value()) : Json();
}

Json operations_of(const Json& dump, const std::string& kind, int peer = -1) {
  for (const Json& order : dump["orders"])
    if (order["kind"] == kind && (kind == "collectives" || order["peer"] == peer)) return order["operations"];
  return Json::array();
}

TEST(Flight, every_rank_records_the_same_calls_under_the_same_numbers) {
  const TemporaryDirectory directory;
  run_thread_ranks(3, options("all_reduce:0-inf=ring"), [&](Communicator comm) {
    std::vector<float> values(50), all(150);
    ASSERT_TRUE(comm.barrier().ok());
    ASSERT_TRUE(comm.all_reduce({values.data(), 50, DType::kFloat32}, ReduceOp::kMax).ok());
    ASSERT_TRUE(
        comm.all_gather(ConstBuffer(values.data(), 50, DType::kFloat32), {all.data(), 150, DType::kFloat32}).ok());
    ASSERT_TRUE(comm.broadcast_async({values.data(), 7, DType::kInt32}, 2).wait().ok());
    if (comm.rank() == 0) {
      ASSERT_TRUE(comm.send(ConstBuffer(values.data(), 5, DType::kFloat32), 1).ok());
    }
    if (comm.rank() == 1) {
      ASSERT_TRUE(comm.recv({values.data(), 5, DType::kFloat32}, 0).ok());
    }

    const Json dump = dump_of(comm, directory);
    EXPECT_EQ(dump["name"], "seen");
    EXPECT_EQ(dump["rank"], comm.rank());
    EXPECT_EQ(dump["size"], 3);
    EXPECT_EQ(dump["state"], "ready");
    EXPECT_TRUE(dump["failure"].is_null());
    const Json calls = operations_of(dump, "collectives");
    ASSERT_EQ(calls.size(), 4u);
    const char* names[] = {"barrier", "all_reduce", "all_gather", "broadcast"};
    std::int64_t ended = dump["created_ns"];
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(calls[i]["number"], i + 1);
      EXPECT_EQ(calls[i]["collective"], names[i]);
      EXPECT_EQ(calls[i]["state"], "done");
      EXPECT_LE(ended, calls[i]["started_ns"].get<std::int64_t>());
      EXPECT_LE(calls[i]["started_ns"].get<std::int64_t>(), calls[i]["ended_ns"].get<std::int64_t>());
      ended = calls[i]["ended_ns"];
      EXPECT_EQ(calls[i]["queued_ns"].is_null(), i != 3);
    }
    EXPECT_EQ(calls[1]["op"], "max");
    EXPECT_EQ(calls[1]["algorithm"], "ring");
    EXPECT_EQ(calls[1]["bytes"], 200);
    EXPECT_TRUE(calls[2]["op"].is_null());
    EXPECT_EQ(calls[3]["root"], 2);
    EXPECT_EQ(calls[3]["count"], 7);
    EXPECT_EQ(operations_of(dump, "send", 1).size(), comm.rank() == 0 ? 1u : 0u);
    EXPECT_EQ(operations_of(dump, "receive", 0).size(), comm.rank() == 1 ? 1u : 0u);
  });
}

TEST(Flight, communicators_with_equal_names_have_different_ids) {
  const TemporaryDirectory directory;
  run_thread_ranks(2, options(), [&](Communicator comm) {
    Result<std::optional<Communicator>> same = comm.split(0, 0, "seen");
    Result<std::optional<Communicator>> alone = comm.split(comm.rank(), 0, "seen");
    ASSERT_TRUE(same.ok() && alone.ok());
    std::string mine = dump_of(comm, directory)["communicator"];
    std::string theirs(mine.size(), '\0');
    if (comm.rank() == 0) theirs = mine;
    ASSERT_TRUE(comm.broadcast({theirs.data(), theirs.size(), DType::kUInt8}, 0).ok());
    EXPECT_EQ(mine, theirs);
    EXPECT_NE(dump_of(**same, directory)["communicator"], mine);
    std::string other = dump_of(**alone, directory)["communicator"], first = other;
    ASSERT_TRUE(comm.broadcast({first.data(), first.size(), DType::kUInt8}, 0).ok());
    EXPECT_EQ(other == first, comm.rank() == 0);
  });
}

TEST(Flight, a_failed_call_is_recorded_with_the_ranks_that_it_waited_for) {
  const TemporaryDirectory directory;
  run_thread_ranks(2, options(), [&](Communicator comm) {
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) return;
    const Status late = comm.barrier({.timeout = std::chrono::milliseconds(200)});
    EXPECT_FALSE(late.ok());
    const Json dump = dump_of(comm, directory);
    EXPECT_EQ(dump["state"], "failed");
    EXPECT_EQ(dump["failure"]["ranks"], Json::array({1}));
    EXPECT_THAT(dump["failure"]["message"].get<std::string>(), HasSubstr("barrier on group \"seen\""));
    const Json last = operations_of(dump, "collectives").back();
    EXPECT_EQ(last["number"], 2);
    EXPECT_EQ(last["state"], "failed");
    EXPECT_EQ(last["waits_for"], 1);
    // The recorder keeps the first of the calls on a failed group: what the rank would have called may explain the
    // failure.
    for (int i = 0; i < 100; ++i) ASSERT_FALSE(comm.broadcast({}, 0).ok());
    const Json calls = operations_of(dump_of(comm, directory), "collectives");
    ASSERT_EQ(calls.size(), 3u);
    EXPECT_EQ(calls[2]["collective"], "broadcast");
    EXPECT_EQ(calls[2]["state"], "failed");
    EXPECT_TRUE(calls[2]["started_ns"].is_null());
    EXPECT_EQ(comm.counters().failures, 2u);
    EXPECT_EQ(comm.counters().of(Collective::kBroadcast).calls, 0u);
  });
}

TEST(Flight, works_that_wait_for_their_turn_are_recorded_as_queued) {
  const TemporaryDirectory directory;
  run_thread_ranks(2, options(), [&](Communicator comm) {
    float value = 1;
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) {
      std::vector<Work> works;
      for (int i = 0; i < 3; ++i)
        works.push_back(comm.all_reduce_async(Buffer{&value, 1, DType::kFloat32}, ReduceOp::kSum));
      const auto states = [&] {
        std::string text;
        for (const Json& call : operations_of(dump_of(comm, directory), "collectives"))
          text += call["state"].get<std::string>() + " ";
        return text;
      };
      while (states() != "done running queued queued ") std::this_thread::yield();
      ASSERT_TRUE(comm.send(ConstBuffer(&value, 1, DType::kFloat32), 1).ok());
      for (Work& work : works) ASSERT_TRUE(work.wait().ok());
      EXPECT_EQ(states(), "done done done done ");
      EXPECT_EQ(comm.counters().queued, 3u);
    } else {
      float other = 0;
      ASSERT_TRUE(comm.recv({&other, 1, DType::kFloat32}, 0).ok());
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(comm.all_reduce({&value, 1, DType::kFloat32}, ReduceOp::kSum).ok());
    }
  });
}

TEST(Flight, counters_report_calls_and_bytes_of_each_collective) {
  run_thread_ranks(2, options(), [&](Communicator comm) {
    std::vector<double> values(30);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(comm.all_reduce({values.data(), 10, DType::kFloat64}, ReduceOp::kSum).ok());
    ASSERT_TRUE(
        comm.all_gather(ConstBuffer(values.data() + 20, 10, DType::kFloat64), {values.data(), 20, DType::kFloat64})
            .ok());
    if (comm.rank() == 0) {
      ASSERT_TRUE(comm.send(ConstBuffer(values.data(), 3, DType::kFloat64), 1).ok());
    }
    if (comm.rank() == 1) {
      ASSERT_TRUE(comm.recv({values.data(), 3, DType::kFloat64}, 0).ok());
    }
    const Counters counters = comm.counters();
    EXPECT_EQ(counters.of(Collective::kAllReduce).calls, 5u);
    EXPECT_EQ(counters.of(Collective::kAllReduce).bytes, 400u);
    EXPECT_EQ(counters.of(Collective::kAllGather).bytes, 80u);
    EXPECT_EQ(counters.of(Collective::kSendRecv).calls, 1u);
    EXPECT_EQ(counters.of(Collective::kSendRecv).bytes, 24u);
    EXPECT_EQ(counters.of(Collective::kBarrier).calls, 0u);
    EXPECT_EQ(counters.failures, 0u);
  });
}

TEST(Flight, unequal_parts_are_recorded_as_far_as_a_rank_knows_their_counts) {
  const TemporaryDirectory directory;
  run_thread_ranks(2, options(), [&](Communicator comm) {
    const std::vector<std::size_t> counts = {3, 5};
    const std::size_t mine = counts[static_cast<std::size_t>(comm.rank())];
    std::vector<float> part(mine), all(8);
    const ConstBuffer input(part.data(), mine, DType::kFloat32);
    ASSERT_TRUE(comm.all_gather_v(input, {all.data(), 8, DType::kFloat32}, counts).ok());
    ASSERT_TRUE(comm.gather_v(input, {all.data(), 8, DType::kFloat32}, counts, 1).ok());
    const Json calls = operations_of(dump_of(comm, directory), "collectives");
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_EQ(calls[0]["collective"], "all_gather");
    EXPECT_EQ(calls[0]["phase"], "unequal_parts");
    EXPECT_EQ(calls[0]["count"], 5);
    EXPECT_FALSE(calls[0]["parts"].is_null());
    EXPECT_EQ(calls[1]["phase"], "counts_first");
    EXPECT_TRUE(calls[1]["parts"].is_null());
    EXPECT_EQ(calls[1]["state"], "done");
    EXPECT_FALSE(calls[1]["algorithm"].is_null());
    EXPECT_EQ(comm.counters().of(Collective::kAllGather).bytes, 32u);
    EXPECT_EQ(comm.counters().of(Collective::kGather).calls, 1u);
  });
}

TEST(Flight, a_dump_that_cannot_be_written_reports_the_reason) {
  const TemporaryDirectory directory;
  Result<Communicator> comm = Communicator::create(make_memory_store(), 0, 1, options());
  ASSERT_TRUE(comm.ok());
  EXPECT_EQ(comm->dump("").status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(write_file(directory.path() + "/file", "").ok());
  const Status status = comm->dump(directory.path() + "/file/below").status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("file/below"));
  EXPECT_TRUE(comm->dump(directory.path() + "/made/here").ok());
}

}  // namespace
}  // namespace accord
