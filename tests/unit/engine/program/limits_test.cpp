// Limits that keep the loading of a package short, however much work its graph asks for.
#include <gmock/gmock.h>

#include <algorithm>

#include "unit/engine/ops/op_runner.hpp"

namespace accord::engine {
namespace {

using ::testing::HasSubstr;

/// Returns the number of nodes that are left for a run; the others are computed while `output` is prepared.
Result<std::ptrdiff_t> nodes_left(GraphWriter& writer, ValueId output) {
  writer.output(output);
  ACCORD_ASSIGN_OR_RETURN(const Program program,
                          prepare_program({writer.graph(), {}, host::target(), find_op, {}, 1}, {}));
  return std::count_if(program.steps.begin(), program.steps.end(),
                       [](const ProgramStep& step) { return step.node != nullptr; });
}

ValueId ones(GraphWriter& writer, const SymbolicShape& shape) {
  return writer.node("aten.full.default", {{"size", shape}, {"fill_value", 1.0}}, shape);
}

ValueId sum(GraphWriter& writer, ValueId x) {
  return writer.node("aten.sum.dim_IntList", {{"self", of(x)}, {"dim", numbers({})}}, shape_of({}));
}

TEST(Folding, small_constants_are_computed_once) {
  GraphWriter writer;
  const ValueId x = ones(writer, shape_of({"100", "100"}));
  EXPECT_EQ(*nodes_left(writer, sum(writer, x)), 0);
}

TEST(Folding, expanded_elements_count_as_work) {
  GraphWriter writer;
  const SymbolicShape huge = shape_of({"8", "1099511627776"});
  const ValueId expanded =
      writer.node("aten.expand.default", {{"self", of(ones(writer, shape_of({"1"})))}, {"size", huge}}, huge);
  const Result<std::ptrdiff_t> left = nodes_left(writer, sum(writer, expanded));
  ASSERT_TRUE(left.ok()) << left.status().to_string();
  EXPECT_EQ(*left, 1);
}

TEST(Folding, folding_stops_at_the_total_work_limit) {
  GraphWriter writer;
  const SymbolicShape shape = shape_of({"16384"});
  ValueId x = ones(writer, shape);
  const int nodes = 2000;
  for (int i = 0; i < nodes; ++i) x = writer.node("aten.neg.default", {{"self", of(x)}}, shape);
  const Result<std::ptrdiff_t> left = nodes_left(writer, x);
  ASSERT_TRUE(left.ok()) << left.status().to_string();
  EXPECT_GT(*left, nodes / 2);
  EXPECT_LT(*left, nodes);
}

TEST(Limits, tensors_that_together_exceed_any_memory_are_rejected) {
  GraphWriter writer;
  const SymbolicShape shape = shape_of({"16", "1099511627776"});
  const ValueId x = writer.input("x", shape);
  ValueId y = x;
  for (int i = 0; i < (1 << 16) + 2; ++i) {
    y = writer.node("aten.add.Tensor", {{"self", of(y)}, {"other", of(x)}, {"alpha", number(i + 2)}}, shape);
  }
  const Status status = nodes_left(writer, y).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("larger than any memory"));
}

}  // namespace
}  // namespace accord::engine
