// Conclusions from made-up records: which rank is at fault, and the text of the finding.
#include "cli/diagnose/diagnosis.hpp"

#include <gmock/gmock.h>

#include "cli/diagnose/report.hpp"

namespace accord::cli {
namespace {

using flight::Operation;
using flight::OperationState;
using flight::Order;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNow = 100 * kSecond;

exec::RequestRecord sum_of(std::uint64_t count) {
  return {.collective = Collective::kAllReduce, .dtype = DType::kFloat32, .op = ReduceOp::kSum, .count = count};
}

Operation running(std::uint64_t number, std::int64_t for_ns = 5 * kSecond, exec::RequestRecord request = sum_of(4)) {
  return {.number = number,
          .state = OperationState::kRunning,
          .request = request,
          .algorithm = "packet",
          .started_ns = kNow - for_ns};
}

Operation done(std::uint64_t number, exec::RequestRecord request = sum_of(4)) {
  return {.number = number,
          .state = OperationState::kDone,
          .request = request,
          .algorithm = "packet",
          .started_ns = kNow - 8 * kSecond,
          .ended_ns = kNow - 7 * kSecond};
}

/// Returns a group whose ranks run, with these collectives.
GroupEvidence group_of(const std::vector<std::vector<Operation>>& ranks) {
  GroupEvidence group{.id = "01", .name = "tp", .ranks = {}};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    FlightLog log;
    log.id = "01";
    log.name = "tp";
    log.rank = static_cast<Rank>(r);
    log.peers.resize(ranks.size());
    log.taken_ns = kNow;
    log.orders.push_back({.direction = Direction::kNone, .peer = -1, .operations = ranks[r]});
    group.ranks.push_back({.log = log, .condition = Condition::kRunning, .process = 100 + static_cast<int>(r)});
  }
  return group;
}

GroupDiagnosis diagnosis_of(const GroupEvidence& group) { return diagnose({group}).front(); }

TEST(Diagnosis, a_rank_waiting_in_an_earlier_call_is_not_blamed) {
  const GroupDiagnosis found = diagnosis_of(group_of({{running(7)}, {done(4), running(5)}, {done(4)}}));
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_EQ(found.findings[0].kind, FindingKind::kBehind);
  EXPECT_THAT(found.findings[0].ranks, ElementsAre(2));
  EXPECT_EQ(
      found.findings[0].text,
      "rank 2 has not arrived at call 7, all_reduce of 4 x float32 (sum), where ranks 0 and 1 wait; its last call was "
      "call 4, all_reduce of 4 x float32 (sum), which ended 7 s earlier");
  EXPECT_THAT(found.ranks[1].waits_for, ElementsAre(2));
  EXPECT_EQ(found.ranks[1].since_ns, 5 * kSecond);
}

TEST(Diagnosis, a_rank_that_did_its_part_and_continued_is_not_blamed) {
  const GroupDiagnosis found = diagnosis_of(group_of({{done(5), done(6)}, {running(5)}, {done(4)}}));
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_THAT(found.findings[0].ranks, ElementsAre(2));
}

TEST(Diagnosis, a_brief_wait_is_normal) {
  const GroupDiagnosis found = diagnosis_of(group_of({{running(5, kMomentNs / 2)}, {done(4)}}));
  EXPECT_FALSE(found.someone_waits);
  EXPECT_THAT(found.findings, IsEmpty());
  EXPECT_EQ(to_text({found}), "1 communicator in which no rank waits\n");
}

TEST(Diagnosis, a_call_that_all_ranks_have_reached_is_reported_as_such) {
  const GroupDiagnosis found = diagnosis_of(group_of({{running(5)}, {running(5)}}));
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_EQ(found.findings[0].kind, FindingKind::kAllIn);
  EXPECT_THAT(found.findings[0].ranks, IsEmpty());
}

TEST(Diagnosis, the_first_call_number_at_which_ranks_differ_is_the_mismatch) {
  const auto odd = sum_of(5);
  const GroupDiagnosis found = diagnosis_of(group_of({{done(1), done(2), running(3)},
                                                      {done(1), done(2, odd), running(3, kSecond, odd)},
                                                      {done(1), done(2), running(3)}}));
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_EQ(found.findings[0].kind, FindingKind::kMismatch);
  EXPECT_THAT(found.findings[0].ranks, ElementsAre(1));
  EXPECT_EQ(
      found.findings[0].text,
      "call 2: rank 1 called all_reduce of 5 x float32 (sum); ranks 0 and 2 called all_reduce of 4 x float32 (sum)");
}

TEST(Diagnosis, calls_after_the_failure_are_not_a_mismatch) {
  const auto refused = [](std::uint64_t number, std::uint64_t count) {
    return Operation{.number = number,
                     .state = OperationState::kFailed,
                     .request = sum_of(count),
                     .algorithm = {},
                     .ended_ns = kNow};
  };
  const auto failed = [](std::uint64_t number) {
    Operation operation = running(number);
    operation.state = OperationState::kFailed;
    operation.ended_ns = kNow;
    return operation;
  };
  EXPECT_NE(diagnosis_of(group_of({{failed(5), refused(6, 1)}, {failed(5), refused(6, 2)}})).findings.front().kind,
            FindingKind::kMismatch);
  const GroupDiagnosis found = diagnosis_of(group_of({{failed(5)}, {refused(5, 9)}, {failed(5)}}));
  EXPECT_EQ(found.findings.front().kind, FindingKind::kMismatch);  // it would have called something else
  EXPECT_THAT(found.findings.front().ranks, ElementsAre(1));
}

TEST(Diagnosis, a_rank_that_arrives_after_a_death_is_not_blamed_but_a_late_one_is) {
  const Operation refused{
      .number = 5, .state = OperationState::kFailed, .request = sum_of(4), .algorithm = {}, .ended_ns = kNow};
  GroupEvidence group = group_of({{running(5)}, {done(4), refused}, {}});
  group.ranks[2] = {.log = {}, .condition = Condition::kNotKnown, .process = 102};
  const auto ranks_at_fault_with = [&](StatusCode code) {
    for (const Rank r : {0, 1})
      group.ranks[r].log->failure = flight::Failure{.code = code, .message = "why", .ranks = {}};
    std::vector<Rank> ranks;
    for (const Finding& finding : diagnosis_of(group).findings)
      ranks.insert(ranks.end(), finding.ranks.begin(), finding.ranks.end());
    return ranks;
  };
  EXPECT_THAT(ranks_at_fault_with(StatusCode::kPeerLost), ElementsAre(2));
  EXPECT_THAT(ranks_at_fault_with(StatusCode::kTimeout), ElementsAre(1, 2));
}

TEST(Diagnosis, without_a_majority_both_sides_are_named) {
  const GroupDiagnosis found = diagnosis_of(group_of({{running(1)}, {running(1, kSecond, sum_of(9))}}));
  EXPECT_THAT(found.findings.front().ranks, ElementsAre(0, 1));
}

TEST(Diagnosis, ranks_with_different_plans_are_named_with_their_plans) {
  GroupEvidence group = group_of({{running(1)}, {running(1)}, {running(1)}});
  group.ranks[2].log->orders[0].operations[0].algorithm = "ring";
  const GroupDiagnosis found = diagnosis_of(group);
  EXPECT_EQ(found.findings.front().kind, FindingKind::kMismatch);
  EXPECT_THAT(found.findings.front().ranks, ElementsAre(2));
  EXPECT_THAT(found.findings.front().text, HasSubstr("by ring"));
  group.ranks[2].log->orders[0].operations[0].algorithm = "";  // unknown
  EXPECT_EQ(diagnosis_of(group).findings.front().kind, FindingKind::kAllIn);
}

TEST(Diagnosis, the_state_of_a_process_explains_why_it_is_missing) {
  GroupEvidence group = group_of({{running(5)}, {done(4)}, {running(5)}, {}, {}, {}});
  group.ranks[1].condition = Condition::kStopped;
  group.ranks[2].condition = Condition::kStopped;
  group.ranks[3] = {.log = {}, .condition = Condition::kGone, .process = 103};
  group.ranks[4] = {.log = {}, .condition = Condition::kLeft, .process = 104};
  group.ranks[5] = {.log = {}, .condition = Condition::kElsewhere, .process = 105};
  const GroupDiagnosis found = diagnosis_of(group);
  std::map<Rank, FindingKind> kinds;
  for (const Finding& finding : found.findings) kinds[finding.ranks.at(0)] = finding.kind;
  EXPECT_EQ(
      kinds,
      (std::map<Rank, FindingKind>{
          {1, FindingKind::kStopped}, {2, FindingKind::kStopped}, {3, FindingKind::kGone}, {4, FindingKind::kLeft}}));
}

TEST(Diagnosis, a_message_that_differs_between_its_sides_is_a_mismatch) {
  const auto message = [](std::uint64_t count) {
    return exec::RequestRecord{.collective = Collective::kSendRecv, .dtype = DType::kInt8, .count = count};
  };
  GroupEvidence group = group_of({{}, {}});
  group.ranks[0].log->orders.push_back({Direction::kSend, 1, {running(3, kSecond, message(10))}});
  group.ranks[1].log->orders.push_back({Direction::kReceive, 0, {running(3, kSecond, message(11))}});
  GroupDiagnosis found = diagnosis_of(group);
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_EQ(found.findings[0].kind, FindingKind::kMismatch);
  EXPECT_THAT(found.findings[0].text, HasSubstr("message 3 from rank 0 to rank 1"));
  group.ranks[1].log->orders[1].operations = {done(2, message(10))};
  found = diagnosis_of(group);
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_THAT(found.findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(found.findings[0].text,
              HasSubstr("rank 1 has not arrived at recv 3, 10 x int8 from rank 0, where rank 0 waits"));
}

TEST(Diagnosis, tagged_messages_are_not_compared_by_call_number) {
  const auto message = [](std::uint64_t count, Rank tag) {
    return exec::RequestRecord{.collective = Collective::kSendRecv, .dtype = DType::kInt8, .root = tag, .count = count};
  };
  GroupEvidence group = group_of({{}, {}});
  group.ranks[0].log->orders.push_back({Direction::kSend, 1, {done(3, message(10, 1))}});
  group.ranks[1].log->orders.push_back(
      {Direction::kReceive, 0, {running(3, 5 * kSecond, message(20, 2)), done(4, message(10, 1))}});
  GroupDiagnosis found = diagnosis_of(group);
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_EQ(found.findings[0].kind, FindingKind::kBehind);
  EXPECT_THAT(found.findings[0].ranks, ElementsAre(0));
  EXPECT_THAT(found.findings[0].text,
              HasSubstr("rank 0 has not arrived at send of 20 x int8, tag 2, to rank 1, where rank 1 waits"));
  EXPECT_EQ(found.ranks[1].what_call(), "recv of 20 x int8, tag 2, from rank 0");
  // A long message in flight to a receive that waits for a later one.
  group.ranks[0].log->orders[1].operations.push_back(running(4, 5 * kSecond, message(30, 7)));
  found = diagnosis_of(group);
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_EQ(found.findings[0].kind, FindingKind::kAllIn);
}

TEST(Diagnosis, failures_are_reported_once) {
  GroupEvidence group = group_of({{running(5)}, {running(5)}});
  for (RankEvidence& rank : group.ranks) {
    rank.log->state = CommunicatorState::kFailed;
    rank.log->failure = flight::Failure{.code = StatusCode::kAborted, .message = "enough", .ranks = {0}};
  }
  const GroupDiagnosis found = diagnosis_of(group);
  EXPECT_THAT(found.failures, ElementsAre("rank 0: aborted: enough"));
  EXPECT_THAT(to_text({found}), HasSubstr("group \"tp\" (2 ranks): failed\n  failure of rank 0: aborted: enough\n"));
}

}  // namespace
}  // namespace accord::cli
