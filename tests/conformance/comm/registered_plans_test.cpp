// A user's own plans serve ordinary calls: plans imported from MSCCL++ run over real transports, checked on whole
// numbers; and which plan is selected when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accord/plan.hpp"
#include "conformance/comm/planned.hpp"
#include "plan/registry.hpp"
#include "ranks/thread_ranks.hpp"
#include "unit/plan/mscclpp_switch_plans.hpp"

namespace accord {
namespace {

using plan::testing::execution_plans;
using plan::testing::NamedText;
using plan::testing::switch_plans;
using ::testing::HasSubstr;
using testing::run_thread_ranks;

using Numbers = std::vector<std::int64_t>;

// Values of rank `rank`: integers, so that sums are exact in any order.
Numbers numbers(int rank, std::size_t count) {
  Numbers values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = (rank + 1) * 1000003LL + static_cast<std::int64_t>(i) * 7;
  return values;
}

Buffer buffer(Numbers& values) { return {values.data(), values.size(), DType::kInt64}; }

std::string registered(const NamedText& named, int ranks, const PlanOptions& options = {}) {
  const Result<std::string> json = import_mscclpp_plan(named.plan.text(), SwitchOps::kOrdinary);
  EXPECT_TRUE(json.ok()) << json.status().to_string();
  PlanOptions with_name = options;
  if (with_name.name.empty()) with_name.name = named.name + std::to_string(ranks);
  const Status status = register_plan(*json, with_name);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return with_name.name;
}

struct Expected {
  Numbers input, output;
};

// Returns a rank's input and expected output of a call with `count` elements per part.
Expected expected(std::string_view collective, int rank, int size, std::size_t count) {
  const std::size_t all = count * static_cast<std::size_t>(size), first = count * static_cast<std::size_t>(rank);
  if (collective == "allgather") {
    Expected values{numbers(rank, count), {}};
    for (int r = 0; r < size; ++r) {
      const Numbers theirs = numbers(r, count);
      values.output.insert(values.output.end(), theirs.begin(), theirs.end());
    }
    return values;
  }
  const bool divided = collective != "allreduce";
  Expected values{numbers(rank, divided ? all : count), Numbers(collective == "alltoall" ? all : count, 0)};
  for (int r = 0; r < size; ++r) {
    const Numbers theirs = numbers(r, values.input.size());
    for (std::size_t i = 0; i < count; ++i) {
      if (collective == "alltoall") {
        values.output[count * static_cast<std::size_t>(r) + i] = theirs[first + i];
      } else {
        values.output[i] += theirs[(divided ? first : 0) + i];
      }
    }
  }
  return values;
}

Status call(Communicator& comm, std::string_view collective, ConstBuffer input, Buffer output) {
  if (collective == "allgather") return comm.all_gather(input, output);
  if (collective == "alltoall") return comm.all_to_all(input, output);
  if (collective == "reducescatter") return comm.reduce_scatter(input, output, ReduceOp::kSum);
  return comm.all_reduce(input, output, ReduceOp::kSum);
}

std::string collective_name(std::string_view foreign) {
  return foreign == "allgather"       ? "all_gather"
         : foreign == "alltoall"      ? "all_to_all"
         : foreign == "reducescatter" ? "reduce_scatter"
                                      : "all_reduce";
}

class RegisteredPlans : public ::testing::TestWithParam<std::string> {};

TEST_P(RegisteredPlans, from_mscclpp_match_the_definition_of_their_collective) {
  const std::vector<int> sizes = testing::kSanitized ? std::vector<int>{2, 4} : std::vector<int>{2, 4, 8};
  for (const int size : sizes) {
    std::vector<NamedText> all = execution_plans(size);
    std::ranges::move(switch_plans(size), std::back_inserter(all));
    for (const NamedText& named : all) {
      SCOPED_TRACE(named.name + " of " + std::to_string(size));
      const std::string collective = named.plan.json["collective"].get<std::string>();
      CommunicatorOptions options;
      options.timeout = std::chrono::seconds(60);
      options.transport = GetParam();
      options.select = collective_name(collective) + ":0-inf=" + registered(named, size) + "@64k";
      run_thread_ranks(size, options, [&](Communicator comm) {
        for (const std::size_t count : {0, 1, 5, 64, 3000, 20011}) {
          const Expected values = expected(collective, comm.rank(), size, count);
          Numbers input = values.input, output(values.output.size(), -1);
          const Status status = call(comm, collective, ConstBuffer(buffer(input)), buffer(output));
          ASSERT_TRUE(status.ok()) << status.to_string();
          ASSERT_EQ(output, values.output) << count;
          ASSERT_EQ(input, values.input) << "the input was written";
          if (collective != "allreduce") continue;
          ASSERT_TRUE(comm.all_reduce(buffer(input), ReduceOp::kSum).ok());
          ASSERT_EQ(input, values.output) << count << ", in place";
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RegisteredPlans, ::testing::Values("inproc", "shm"),
                         [](const auto& test) { return test.param; });

CommunicatorOptions selecting(std::string select) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(60);
  options.transport = "inproc";
  options.select = std::move(select);
  return options;
}

// A correct plan that reveals whether it ran: it does not support avg, which every default plan does.
std::string ring_text(int size) { return plan::testing::ring_in_place(size).text(); }
bool runs_ring_plan(Communicator& comm) {
  std::vector<float> values(8, 1);
  const Status status = comm.all_reduce(Buffer{values.data(), values.size(), DType::kFloat32}, ReduceOp::kAvg);
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnsupported) << status.to_string();
  return !status.ok();
}

std::string imported_ring(int size) {
  const Result<std::string> json = import_mscclpp_plan(ring_text(size));
  EXPECT_TRUE(json.ok()) << json.status().to_string();
  return json.ok() ? *json : "";
}

TEST(RegisteredPlan, for_another_number_of_ranks_is_skipped) {
  ASSERT_TRUE(register_plan(imported_ring(4), {.name = "for_four"}).ok());
  run_thread_ranks(4, selecting("all_reduce:0-inf=for_four"),
                   [](Communicator comm) { EXPECT_TRUE(runs_ring_plan(comm)); });
  run_thread_ranks(3, selecting("all_reduce:0-inf=for_four"),
                   [](Communicator comm) { EXPECT_FALSE(runs_ring_plan(comm)); });
  ASSERT_TRUE(register_plan(imported_ring(3), {.name = "for_four"}).ok());  // one name for several numbers of ranks
  run_thread_ranks(3, selecting("all_reduce:0-inf=for_four"),
                   [](Communicator comm) { EXPECT_TRUE(runs_ring_plan(comm)); });
}

TEST(RegisteredPlan, with_a_custom_order_is_skipped_by_canonical_tables) {
  ASSERT_TRUE(register_plan(imported_ring(2), {.name = "not_canonical"}).ok());
  run_thread_ranks(2, selecting("all_reduce:0-inf=not_canonical;deterministic=canonical"),
                   [](Communicator comm) { EXPECT_FALSE(runs_ring_plan(comm)); });
}

TEST(RegisteredPlan, serves_calls_of_its_range_on_existing_communicators_unless_a_table_overrides_it) {
  const std::string json = imported_ring(5);
  run_thread_ranks(5, selecting(""), [&](Communicator comm) {
    EXPECT_FALSE(runs_ring_plan(comm));
    ASSERT_TRUE(comm.barrier().ok());
    ASSERT_TRUE(register_plan(json, {.name = "later", .bytes = "0-1k"}).ok());  // on every rank; the first one counts
    ASSERT_TRUE(comm.barrier().ok());
    EXPECT_TRUE(runs_ring_plan(comm));
    std::vector<float> large(1000, 1);
    EXPECT_TRUE(comm.all_reduce(Buffer{large.data(), large.size(), DType::kFloat32}, ReduceOp::kAvg).ok());
  });
  run_thread_ranks(5, selecting("all_reduce:0-inf=one_shot"),
                   [](Communicator comm) { EXPECT_FALSE(runs_ring_plan(comm)); });
}

TEST(RegisteredPlan, must_be_correct_and_uniquely_named) {
  const std::string good = imported_ring(6);
  const auto message = [](std::string_view json, const PlanOptions& options) {
    const Status status = register_plan(json, options);
    EXPECT_FALSE(status.ok());
    return status.message();
  };
  EXPECT_THAT(message("{}", {}), HasSubstr("this is not a plan"));
  EXPECT_THAT(message(good, {.name = "two_shot"}), HasSubstr("all_reduce has a built-in algorithm \"two_shot\""));
  EXPECT_THAT(message(good, {.name = "a-b"}), HasSubstr("\"a-b\" is not a name for selection tables"));
  EXPECT_THAT(message(good, {.name = "x", .bytes = "4k"}), HasSubstr("bytes \"4k\" is not a range"));
  EXPECT_THAT(message(good, {.name = "x", .bytes = "4k-1k"}), HasSubstr("is empty"));
  std::string wrong = good;
  wrong.replace(wrong.find("\"signal\""), 8, "\"wait\"");
  EXPECT_EQ(register_plan(wrong, {.name = "wrong"}).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(verify_plan(wrong).message(), HasSubstr("rank "));
  EXPECT_THAT(message(wrong, {.name = "wrong"}), HasSubstr("waits for ever"));
}

TEST(RegisteredPlan, cannot_be_replaced_by_another_with_its_name) {
  ASSERT_TRUE(register_plan(imported_ring(7), {.name = "once"}).ok());
  const std::uint64_t version = plan::registry_version();
  EXPECT_TRUE(register_plan(imported_ring(7), {.name = "once"}).ok()) << "the same again";
  EXPECT_EQ(plan::registry_version(), version) << "communicators would prepare their plans again";
  const Result<std::string> other = import_mscclpp_plan(plan::testing::all_pairs(7).text());
  EXPECT_THAT(register_plan(*other, {.name = "once"}).message(),
              HasSubstr("another plan for 7 ranks and root 0 is registered under the name \"once\""));
}

TEST(RegisteredPlan, is_suggested_for_a_misspelt_name_in_a_table) {
  ASSERT_TRUE(register_plan(imported_ring(2), {.name = "quadratic"}).ok());
  run_thread_ranks(1, selecting(""), [](Communicator) {});
  const auto comm = Communicator::create(make_memory_store(), 0, 1, selecting("all_reduce:0-inf=quadratik"));
  EXPECT_THAT(comm.status().message(), HasSubstr("did you mean \"quadratic\"?"));
}

}  // namespace
}  // namespace accord
