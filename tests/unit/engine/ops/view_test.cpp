// Views compared with index arithmetic, alone and in random chains.
#include <gmock/gmock.h>

#include "unit/engine/ops/op_runner.hpp"

namespace accord::engine {
namespace {

Dense<float> counted(const Sizes& sizes) {
  return dense<float>(sizes, [](std::int64_t i) { return static_cast<float>(i); });
}

Argument sizes_argument(const Sizes& sizes) { return SymbolicShape(sizes.begin(), sizes.end()); }

Dense<float> permuted(Dense<float> x, const std::vector<int>& order) {
  Dense<float> y;
  for (const int dim : order) y.sizes.push_back(x.sizes[static_cast<std::size_t>(dim)]);
  for_each_index(y.sizes, [&](const Sizes& index) {
    Sizes from(index.size());
    for (std::size_t i = 0; i < order.size(); ++i) from[static_cast<std::size_t>(order[i])] = index[i];
    y.values.push_back(x.at(from));
  });
  return y;
}

TEST(ViewOps, random_chains_match_index_arithmetic) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Dense<float> x = counted({2, 3, 4, 5});
    OpRunner runner;
    ValueId y = runner.floats(x);
    for (int i = 0; i < 5; ++i) {
      const auto dims = x.sizes.size();
      const auto dim = random() % dims;
      switch (random() % 5) {
        case 0: {
          std::vector<int> order(dims);
          for (std::size_t j = 0; j < dims; ++j) order[j] = static_cast<int>(j);
          std::shuffle(order.begin(), order.end(), random);
          x = permuted(x, order);
          y = runner.node("aten.permute.default",
                          {{"self", of(y)}, {"dims", sizes_argument(Sizes(order.begin(), order.end()))}}, x.sizes);
          break;
        }
        case 1: {  // merges two neighbors, or all
          Sizes sizes = x.sizes;
          if (dims > 1 && dim + 1 < dims) {
            sizes[dim] *= sizes[dim + 1];
            sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1);
          }
          x.sizes = sizes;
          sizes[0] = -1;
          y = runner.node("aten.view.default", {{"self", of(y)}, {"size", sizes_argument(sizes)}}, x.sizes);
          break;
        }
        case 2: {
          if (x.sizes[dim] % 2 != 0) break;
          Dense<float> cut{x.sizes, {}};
          cut.sizes[dim] /= 2;
          for_each_index(cut.sizes, [&](const Sizes& index) {
            Sizes from = index;
            from[dim] = 1 + 2 * index[dim];
            cut.values.push_back(x.at(from));
          });
          x = cut;
          y = runner.node("aten.slice.Tensor",
                          {{"self", of(y)},
                           {"dim", number(static_cast<std::int64_t>(dim))},
                           {"start", number(1)},
                           {"step", number(2)}},
                          x.sizes);
          break;
        }
        case 3: {
          if (dims >= 7) break;
          x.sizes.insert(x.sizes.begin() + static_cast<std::ptrdiff_t>(dim), 1);
          y = runner.node("aten.unsqueeze.default", {{"self", of(y)}, {"dim", number(static_cast<std::int64_t>(dim))}},
                          x.sizes);
          break;
        }
        default: {
          Dense<float> wide;
          wide.sizes = x.sizes;
          for (auto& size : wide.sizes) size = size == 1 ? 3 : size;
          if (wide.sizes == x.sizes) break;
          for_each_index(wide.sizes, [&](const Sizes& index) { wide.values.push_back(x.at(index)); });
          x = wide;
          y = runner.node("aten.expand.default", {{"self", of(y)}, {"size", sizes_argument(x.sizes)}}, x.sizes);
        }
      }
    }
    const Result<std::vector<float>> got = runner.run<float>(y);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    ASSERT_EQ(*got, x.values) << "round " << round;
  }
}

TEST(ViewOps, splitting_heads_adds_no_step) {
  OpRunner runner;
  const ValueId x = runner.floats(counted({2, 5, 12}));
  const ValueId doubled = runner.node("aten.mul.Tensor", {{"self", of(x)}, {"other", number(2)}}, {2, 5, 12});
  const ValueId heads =
      runner.node("aten.view.default", {{"self", of(doubled)}, {"size", sizes_argument({2, 5, -1, 4})}}, {2, 5, 3, 4});
  const ValueId turned =
      runner.node("aten.permute.default", {{"self", of(heads)}, {"dims", sizes_argument({0, 2, -3, 3})}}, {2, 3, 5, 4});
  const ValueId back =
      runner.node("aten.permute.default", {{"self", of(turned)}, {"dims", sizes_argument({0, 2, 1, 3})}}, {2, 5, 3, 4});
  const ValueId joined =
      runner.node("aten.view.default", {{"self", of(back)}, {"size", sizes_argument({2, 5, 12})}}, {2, 5, 12});
  const Result<std::vector<float>> got = runner.run<float>(joined);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ((*got)[7], 14.0F);
  EXPECT_EQ(runner.steps(), 1U);
}

TEST(ViewOps, selections_splits_and_squeezes) {
  OpRunner runner;
  const ValueId x = runner.floats(counted({2, 1, 6}));
  const ValueId last =
      runner.node("aten.select.int", {{"self", of(x)}, {"dim", number(2)}, {"index", number(-1)}}, {2, 1});
  const ValueId flat = runner.node("aten.squeeze.dims", {{"self", of(x)}, {"dim", sizes_argument({0, 1})}}, {2, 6});
  const ValueId first_part =
      runner.node("aten.split_with_sizes.default",
                  {{"self", of(flat)}, {"split_sizes", sizes_argument({4, 2})}, {"dim", number(1)}}, {2, 4});
  const ValueId second_part = runner.writer().more_output({2, 2});
  expect_equal<float>(runner.run<float>(last), {5, 11});
  expect_equal<float>(runner.run<float>(first_part), {0, 1, 2, 3, 6, 7, 8, 9});
  expect_equal<float>(runner.run<float>(second_part), {4, 5, 10, 11});
}

TEST(ViewOps, shapes_and_dtypes_that_contradict_the_op_are_rejected) {
  OpRunner runner;
  const ValueId x = runner.floats(counted({2, 6}));
  const std::vector<ValueId> wrong = {
      runner.node("aten.permute.default", {{"self", of(x)}, {"dims", sizes_argument({1, 0})}}, {2, 6}),
      runner.node("aten.view.default", {{"self", of(x)}, {"size", sizes_argument({5, 2})}}, {5, 2}),
      runner.node("aten.view.default", {{"self", of(x)}, {"size", sizes_argument({-1, -1})}}, {2, 6}),
      runner.node("aten.expand.default", {{"self", of(x)}, {"size", sizes_argument({4, 6})}}, {4, 6}),
      runner.node("aten.select.int", {{"self", of(x)}, {"dim", number(0)}, {"index", number(2)}}, {6}),
      runner.node("aten.unsqueeze.default", {{"self", of(x)}, {"dim", number(4)}}, {2, 6, 1}),
      runner.node("aten.permute.default", {{"self", of(x)}, {"dims", sizes_argument({0, 0})}}, {2, 2}),
      runner.node("aten.neg.default", {{"self", of(x)}}, {2, 6}, DType::kInt32),
      runner.node("aten.neg.default", {}, {2, 6})};
  for (const ValueId y : wrong) {
    OpRunner alone = runner;
    Graph graph = alone.writer().graph();
    const Node node = graph.nodes[static_cast<std::size_t>(y - 1)];
    GraphWriter one;
    one.input("x", shape_of({"2", "6"}));
    const Value& value = graph.values[static_cast<std::size_t>(y)];
    one.output(one.node(node.op, node.arguments, value.shape, value.dtype));
    const Parameters none;
    const std::map<std::string, int> no_groups;
    const Status status = prepare_program({one.graph(), none, host::target(), find_op, no_groups, 1}, {}).status();
    EXPECT_TRUE(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported)
        << status.to_string();
    EXPECT_THAT(status.message(), ::testing::HasSubstr(node.op));
    EXPECT_THAT(status.message(), ::testing::HasSubstr("layer0"));
  }
}

TEST(ViewOps, sizes_and_steps_beyond_64_bits_are_rejected_or_harmless) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  // Modulo 2^64 each has no elements, like its input.
  for (const Sizes& sizes : {Sizes{kHuge, kHuge}, Sizes{kHuge, kHuge, 0}, Sizes{kHuge, -1, kHuge}}) {
    OpRunner views;
    const ValueId nothing = views.floats(counted({0}));
    const Arguments arguments = {{"self", of(nothing)}, {"size", sizes_argument(sizes)}};
    const Status status = views.run<float>(views.node("aten.view.default", arguments, sizes)).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("views 0 elements as [1099511627776, "));
  }
  OpRunner splits;
  const ValueId whole = splits.floats(counted({4}));
  const Arguments pieces = {{"self", of(whole)}, {"split_sizes", sizes_argument({1, INT64_MAX})}};
  const ValueId piece = splits.node("aten.split_with_sizes.default", pieces, {1});
  splits.writer().more_output(shape_of({"3"}));
  EXPECT_THAT(splits.run<float>(piece).status().message(), ::testing::HasSubstr("longer than the tensor"));
  OpRunner runner;
  const ValueId x = runner.floats(counted({3, 4}));
  const ValueId first =
      runner.node("aten.slice.Tensor",
                  {{"self", of(x)}, {"dim", number(0)}, {"start", number(1)}, {"step", number(INT64_MAX)}}, {1, 4});
  const ValueId again =
      runner.node("aten.slice.Tensor", {{"self", of(first)}, {"dim", number(0)}, {"step", number(INT64_MAX)}}, {1, 4});
  expect_equal<float>(runner.run<float>(again), {4, 5, 6, 7});
}

}  // namespace
}  // namespace accord::engine
