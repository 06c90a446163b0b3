// The dump format: a written dump can be read again, and damage is rejected with a message that names it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "flight/flight_log.hpp"

namespace accord::flight {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

FlightLog example() {
  FlightLog log;
  log.id = "00ff";
  log.name = "tp \"x\"";
  log.rank = 1;
  log.host = "here";
  log.peers = {{.process = 10, .host = 0}, {.process = 11, .host = 0}, {.process = 12, .host = 1}};
  log.state = CommunicatorState::kFailed;
  log.failure = Failure{.code = StatusCode::kTimeout, .message = "rank 2 is late", .ranks = {2}, .at_ns = 900};
  log.created_ns = 100;
  log.taken_ns = 1000;
  log.taken_unix_ns = 1'700'000'000'000'000'000;
  log.counters.by_collective[static_cast<std::size_t>(Collective::kReduce)] = {.calls = 4, .bytes = 64};
  log.counters.waits = 3;
  Order collectives;
  collectives.operations.push_back(
      {.number = 8,
       .state = OperationState::kFailed,
       .request =
           {.collective = Collective::kReduce, .dtype = DType::kBFloat16, .op = ReduceOp::kAvg, .root = 2, .count = 16},
       .algorithm = "binomial",
       .started_ns = 500,
       .ended_ns = 900,
       .waits_for = 2});
  collectives.operations.push_back({.number = 9,
                                    .state = OperationState::kQueued,
                                    .request = {.collective = Collective::kBarrier},
                                    .algorithm = {},
                                    .queued_ns = 600});
  collectives.operations.push_back({.number = 10,
                                    .state = OperationState::kRunning,
                                    .request = {.collective = Collective::kAllGather,
                                                .phase = exec::Phase::kUnequalParts,
                                                .count = 9,
                                                .parts = 0xfedcba9876543210},
                                    .algorithm = "ring",
                                    .started_ns = 950});
  Order from_0{.direction = Direction::kReceive, .peer = 0, .operations = {}};
  log.orders = {collectives, from_0};
  return log;
}

TEST(FlightLog, a_written_log_is_read_back) {
  const FlightLog log = example();
  const Result<FlightLog> read = flight_log_from_json(to_json(log));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(to_json(*read), to_json(log));
  EXPECT_EQ(read->name, "tp \"x\"");
  EXPECT_EQ(read->peers[2].process, 12);
  EXPECT_EQ(read->failure->ranks, std::vector<int>{2});
  EXPECT_EQ(read->counters.of(Collective::kReduce).bytes, 64u);
  ASSERT_EQ(read->orders.size(), 2u);
  EXPECT_EQ(read->orders[1].peer, 0);
  const Operation& failed = read->orders[0].operations[0];
  EXPECT_EQ(failed.request, log.orders[0].operations[0].request);
  EXPECT_EQ(failed.ended_ns, 900);
  EXPECT_FALSE(failed.queued_ns.has_value());
  EXPECT_EQ(read->orders[0].last_begun()->number, 10u);
  EXPECT_EQ(read->orders[0].operations[2].request, log.orders[0].operations[2].request);
}

TEST(FlightLog, has_the_documented_fields) {
  const json dump = json::parse(to_json(example()));
  EXPECT_EQ(dump["format"], "accord flight log");
  EXPECT_EQ(dump["version"], 1);
  EXPECT_EQ(dump["size"], 3);
  EXPECT_EQ(dump["failure"]["code"], "timeout");
  const json& operation = dump["orders"][0]["operations"][0];
  EXPECT_EQ(operation["collective"], "reduce");
  EXPECT_EQ(operation["dtype"], "bfloat16");
  EXPECT_EQ(operation["op"], "avg");
  EXPECT_EQ(operation["root"], 2);
  EXPECT_EQ(operation["bytes"], 32);
  EXPECT_EQ(dump["orders"][0]["operations"][1]["state"], "queued");
}

TEST(FlightLog, text_that_is_not_a_dump_or_has_another_version_is_rejected) {
  EXPECT_EQ(flight_log_from_json("").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(flight_log_from_json("[1, 2]").status().message(), "it is not an \"accord flight log\"");
  EXPECT_EQ(flight_log_from_json(R"({"format": 3})").status().code(), StatusCode::kCorrupt);
  json dump = json::parse(to_json(example()));
  dump["version"] = 2;
  EXPECT_EQ(flight_log_from_json(dump.dump()).status().code(), StatusCode::kUnsupported);
  const std::string whole = to_json(example());
  for (std::size_t cut = 0; cut + 2 < whole.size(); cut += 7)
    EXPECT_EQ(flight_log_from_json(whole.substr(0, cut)).status().code(), StatusCode::kCorrupt) << cut;
}

/// Returns the error message for the example with `value` at `path`.
std::string message_with(const char* path, const json& value) {
  json dump = json::parse(to_json(example()));
  dump[json::json_pointer(path)] = value;
  const Status status = flight_log_from_json(dump.dump()).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << path;
  return status.message();
}

TEST(FlightLog, an_invalid_field_is_named) {
  EXPECT_EQ(message_with("/rank", 3), "\"rank\" is 3, with 3 ranks");
  EXPECT_EQ(message_with("/rank", "1"), "\"rank\" is of the wrong type");
  EXPECT_EQ(message_with("/state", "sleeping"), "\"state\" is \"sleeping\", which is not known");
  EXPECT_EQ(message_with("/orders", 1), "\"orders\" is not a list");
  EXPECT_EQ(message_with("/orders/0/kind", "other"), "\"kind\" is \"other\", which is not known");
  EXPECT_EQ(message_with("/orders/1/peer", -1), "\"peer\" is -1, with 3 ranks");
  EXPECT_EQ(message_with("/orders/0/operations/0/phase", "x"), "\"phase\" is \"x\", which is not known");
  EXPECT_EQ(message_with("/orders/0/operations/0/count", -1), "\"count\" is of the wrong type");
  EXPECT_THAT(message_with("/orders/0/operations/0/collective", "all_reduc"), HasSubstr("all_reduce"));
  EXPECT_EQ(message_with("/orders/0/operations/0/waits_for", 9), "\"waits_for\" is 9, with 3 ranks");
  EXPECT_EQ(message_with("/counters", nullptr), "\"failures\" is missing");
}

}  // namespace
}  // namespace accord::flight
