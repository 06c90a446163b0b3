// Elementwise ops compared with the C library, element by element.
#include <cmath>

#include "unit/engine/ops/op_runner.hpp"

namespace accord::engine {
namespace {

std::vector<float> map(const std::vector<float>& x, const std::function<double(double)>& function) {
  std::vector<float> y;
  for (const float value : x) y.push_back(static_cast<float>(function(static_cast<double>(value))));
  return y;
}

TEST(ElementwiseOps, unary_functions_match_the_c_library) {
  const std::vector<std::tuple<std::string, std::function<double(double)>>> cases = {
      {"aten.gelu.default", [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }},
      {"aten.relu.default", [](double x) { return std::max(x, 0.0); }},
      {"aten.silu.default", [](double x) { return x / (1 + std::exp(-x)); }},
      {"aten.tanh.default", [](double x) { return std::tanh(x); }},
      {"aten.sigmoid.default", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"aten.exp.default", [](double x) { return std::exp(x); }},
      {"aten.neg.default", [](double x) { return -x; }},
      {"aten.abs.default", [](double x) { return std::fabs(x); }},
      {"aten.reciprocal.default", [](double x) { return 1 / x; }},
      {"aten.erf.default", [](double x) { return std::erf(x); }},
      {"aten.sin.default", [](double x) { return std::sin(x); }},
      {"aten.cos.default", [](double x) { return std::cos(x); }},
      {"aten.floor.default", [](double x) { return std::floor(x); }},
      {"aten.ceil.default", [](double x) { return std::ceil(x); }},
      {"aten.sqrt.default", [](double x) { return std::sqrt(x); }},
      {"aten.rsqrt.default", [](double x) { return 1 / std::sqrt(x); }},
      {"aten.log.default", [](double x) { return std::log(x); }},
      {"aten.log1p.default", [](double x) { return std::log1p(x); }},
  };
  for (const auto& [op, function] : cases) {
    const Dense<float> x = random_floats({5, 7});
    OpRunner runner;
    const ValueId y = runner.node(op, {{"self", of(runner.floats(x))}}, {5, 7});
    SCOPED_TRACE(op);
    expect_near(runner.run<float>(y), map(x.values, function), 2e-6F);
  }
}

TEST(ElementwiseOps, gelu_has_its_tanh_form) {
  const Dense<float> x = random_floats({33});
  OpRunner runner;
  const ValueId y =
      runner.node("aten.gelu.default", {{"self", of(runner.floats(x))}, {"approximate", text("tanh")}}, {33});
  expect_near(runner.run<float>(y),
              map(x.values,
                  [](double v) { return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); }),
              2e-6F);
}

// Computes a op b with NumPy's broadcasting, by definition.
std::vector<float> broadcast(Dense<float> a, Dense<float> b, const Sizes& sizes,
                             const std::function<double(double, double)>& op) {
  for (Dense<float>* tensor : {&a, &b})
    tensor->sizes.insert(tensor->sizes.begin(), sizes.size() - tensor->sizes.size(), 1);
  std::vector<float> y;
  for_each_index(sizes, [&](const Sizes& index) { y.push_back(static_cast<float>(op(a.at(index), b.at(index)))); });
  return y;
}

TEST(ElementwiseOps, two_tensors_broadcast_against_each_other) {
  const std::vector<std::tuple<std::string, std::function<double(double, double)>>> cases = {
      {"aten.add.Tensor", [](double a, double b) { return a + b; }},
      {"aten.sub.Tensor", [](double a, double b) { return a - b; }},
      {"aten.mul.Tensor", [](double a, double b) { return a * b; }},
      {"aten.div.Tensor", [](double a, double b) { return a / b; }},
      {"aten.minimum.default", [](double a, double b) { return std::min(a, b); }},
      {"aten.maximum.default", [](double a, double b) { return std::max(a, b); }}};
  const std::vector<std::tuple<Sizes, Sizes, Sizes>> shapes = {{{2, 3, 5}, {2, 3, 5}, {2, 3, 5}},
                                                               {{2, 1, 5}, {3, 1}, {2, 3, 5}},
                                                               {{5}, {4, 5}, {4, 5}},
                                                               {{4, 5}, {}, {4, 5}},
                                                               {{0, 3}, {1, 3}, {0, 3}}};
  for (const auto& [op, function] : cases) {
    for (const auto& [a_sizes, b_sizes, y_sizes] : shapes) {
      const Dense<float> a = random_floats(a_sizes, 1);
      const Dense<float> b = random_floats(b_sizes, 2);
      OpRunner runner;
      const ValueId y = runner.node(op, {{"self", of(runner.floats(a))}, {"other", of(runner.floats(b))}}, y_sizes);
      SCOPED_TRACE(op + sizes_text(a_sizes) + sizes_text(b_sizes));
      expect_near(runner.run<float>(y), broadcast(a, b, y_sizes, function), 1e-6F);
    }
  }
}

TEST(ElementwiseOps, alpha_scales_the_other_operand) {
  const Dense<float> a = random_floats({6}, 1);
  const Dense<float> b = random_floats({6}, 2);
  OpRunner runner;
  const ValueId x = runner.floats(a);
  const ValueId z = runner.floats(b);
  const ValueId sum = runner.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(z)}, {"alpha", 0.5}}, {6});
  const ValueId difference =
      runner.node("aten.sub.Tensor", {{"self", of(x)}, {"other", number(3)}, {"alpha", number(2)}}, {6});
  expect_near(runner.run<float>(sum), broadcast(a, b, {6}, [](double p, double q) { return p + 0.5 * q; }), 1e-6F);
  expect_near(runner.run<float>(difference), map(a.values, [](double p) { return p - 6; }), 1e-6F);
}

TEST(ElementwiseOps, integers_are_promoted_as_in_the_graph) {
  OpRunner runner;
  const ValueId n = runner.integers({{4}, {7, -8, 9, 2}});
  const ValueId x = runner.floats({{4}, {0.5F, 2.0F, -1.0F, 4.0F}});
  const ValueId product = runner.node("aten.mul.Tensor", {{"self", of(n)}, {"other", of(x)}}, {4});
  const ValueId quotient = runner.node("aten.div.Tensor", {{"self", of(n)}, {"other", number(2)}}, {4});
  const ValueId truncated =
      runner.node("aten.div.Tensor_mode", {{"self", of(n)}, {"other", number(2)}, {"rounding_mode", text("trunc")}},
                  {4}, DType::kInt64);
  const ValueId floored =
      runner.node("aten.div.Tensor_mode", {{"self", of(x)}, {"other", 0.75}, {"rounding_mode", text("floor")}}, {4});
  const ValueId whole =
      runner.node("aten.div.Tensor_mode", {{"self", of(n)}, {"other", number(-2)}, {"rounding_mode", text("floor")}},
                  {4}, DType::kInt64);
  expect_equal<float>(runner.run<float>(product), {3.5F, -16.0F, -9.0F, 8.0F});
  expect_equal<float>(runner.run<float>(quotient), {3.5F, -4.0F, 4.5F, 1.0F});
  expect_equal<std::int64_t>(runner.run<std::int64_t>(truncated), {3, -4, 4, 1});
  expect_equal<float>(runner.run<float>(floored), {0.0F, 2.0F, -2.0F, 5.0F});
  expect_equal<std::int64_t>(runner.run<std::int64_t>(whole), {-4, 4, -5, -1});
}

TEST(ElementwiseOps, comparisons_convert_both_sides_to_one_dtype) {
  OpRunner runner;
  const ValueId n = runner.integers({{4}, {1, 2, 3, -1}});
  const ValueId x = runner.floats({{4}, {1.0F, 2.5F, -3.0F, -1.0F}});
  const auto compare = [&](const std::string& op, ValueId self, Argument other) {
    return runner.run<unsigned char>(
        runner.node(op, {{"self", of(self)}, {"other", std::move(other)}}, {4}, DType::kBool));
  };
  using Bools = std::vector<unsigned char>;
  expect_equal<unsigned char>(compare("aten.eq.Tensor", n, of(x)), Bools{1, 0, 0, 1});
  expect_equal<unsigned char>(compare("aten.lt.Tensor", n, of(x)), Bools{0, 1, 0, 0});
  expect_equal<unsigned char>(compare("aten.ne.Scalar", n, number(2)), Bools{1, 0, 1, 1});
  expect_equal<unsigned char>(compare("aten.gt.Scalar", n, 1.5), Bools{0, 1, 1, 0});
  expect_equal<unsigned char>(compare("aten.ge.Scalar", x, number(1)), Bools{1, 1, 0, 0});
  expect_equal<unsigned char>(compare("aten.le.Scalar", x, -1.0), Bools{0, 0, 1, 1});
}

TEST(ElementwiseOps, logical_ops_see_every_number_but_zero_as_true) {
  OpRunner runner;
  const ValueId n = runner.integers({{4}, {0, 2, 0, -1}});
  const ValueId b = runner.bools({{4}, {0, 0, 1, 1}});
  const auto logical = [&](const std::string& op, Arguments arguments) {
    return runner.run<unsigned char>(runner.node(op, std::move(arguments), {4}, DType::kBool));
  };
  using Bools = std::vector<unsigned char>;
  expect_equal<unsigned char>(logical("aten.logical_and.default", {{"self", of(n)}, {"other", of(b)}}),
                              Bools{0, 0, 0, 1});
  expect_equal<unsigned char>(logical("aten.logical_or.default", {{"self", of(n)}, {"other", of(b)}}),
                              Bools{0, 1, 1, 1});
  expect_equal<unsigned char>(logical("aten.logical_xor.default", {{"self", of(n)}, {"other", of(b)}}),
                              Bools{0, 1, 1, 0});
  expect_equal<unsigned char>(logical("aten.logical_not.default", {{"self", of(n)}}), Bools{1, 0, 1, 0});
  expect_equal<unsigned char>(logical("aten.bitwise_and.Scalar", {{"self", of(b)}, {"other", true}}),
                              Bools{0, 0, 1, 1});
  EXPECT_EQ(runner
                .run<std::int64_t>(
                    runner.node("aten.bitwise_and.Tensor", {{"self", of(n)}, {"other", of(n)}}, {4}, DType::kInt64))
                .status()
                .code(),
            StatusCode::kUnsupported);
}

TEST(ElementwiseOps, where_selects) {
  OpRunner runner;
  const ValueId mask = runner.bools({{2, 1}, {1, 0}});
  const ValueId x = runner.floats({{2, 2}, {1, 2, 3, 4}});
  const ValueId y = runner.floats({{2}, {10, 20}});
  const ValueId chosen =
      runner.node("aten.where.self", {{"condition", of(mask)}, {"self", of(x)}, {"other", of(y)}}, {2, 2});
  expect_equal<float>(runner.run<float>(chosen), {1, 2, 10, 20});
}

TEST(ElementwiseOps, powers_clamps_and_conversions) {
  OpRunner runner;
  const ValueId x = runner.floats({{4}, {-1.5F, 0.25F, 2.0F, 3.0F}});
  const ValueId n = runner.integers({{4}, {-5, 0, 5, 7}});
  expect_near(runner.run<float>(runner.node("aten.pow.Tensor_Scalar", {{"self", of(x)}, {"exponent", number(2)}}, {4})),
              {2.25F, 0.0625F, 4.0F, 9.0F}, 1e-6F);
  expect_near(runner.run<float>(runner.node("aten.pow.Scalar", {{"self", 2.0}, {"exponent", of(x)}}, {4})),
              {std::pow(2.0F, -1.5F), std::pow(2.0F, 0.25F), 4.0F, 8.0F}, 1e-6F);
  expect_equal<float>(runner.run<float>(runner.node("aten.clamp.default", {{"self", of(x)}, {"min", 0.0}}, {4})),
                      {0.0F, 0.25F, 2.0F, 3.0F});
  expect_equal<float>(runner.run<float>(runner.node("aten.clamp.default", {{"self", of(x)}, {"max", number(2)}}, {4})),
                      {-1.5F, 0.25F, 2.0F, 2.0F});
  expect_equal<std::int64_t>(
      runner.run<std::int64_t>(runner.node(
          "aten.clamp.default", {{"self", of(n)}, {"min", number(-1)}, {"max", number(6)}}, {4}, DType::kInt64)),
      {-1, 0, 5, 6});
  expect_equal<std::int64_t>(
      runner.run<std::int64_t>(
          runner.node("aten.clamp.default", {{"self", of(n)}, {"min", -INFINITY}, {"max", 1e300}}, {4}, DType::kInt64)),
      {-5, 0, 5, 7});
  expect_equal<std::int64_t>(
      runner.run<std::int64_t>(
          runner.node("aten._to_copy.default", {{"self", of(x)}, {"dtype", DType::kInt64}}, {4}, DType::kInt64)),
      {-1, 0, 2, 3});
  expect_equal<unsigned char>(
      runner.run<unsigned char>(
          runner.node("aten._to_copy.default", {{"self", of(n)}, {"dtype", DType::kBool}}, {4}, DType::kBool)),
      {1, 0, 1, 1});
}

TEST(ElementwiseOps, a_chain_runs_in_place_and_the_input_is_unchanged) {
  OpRunner runner;
  ValueId y = runner.floats(random_floats({64, 1024}));
  for (int i = 0; i < 6; ++i) y = runner.node("aten.add.Tensor", {{"self", of(y)}, {"other", 0.5}}, {64, 1024});
  expect_near(runner.run<float>(y), map(random_floats({64, 1024}).values, [](double v) { return v + 3; }), 1e-6F);
  EXPECT_EQ(runner.arena_bytes(), 64U * 1024 * 4);
}

TEST(ElementwiseOps, a_tensor_added_to_its_own_transpose_is_not_overwritten_while_it_is_read) {
  const Dense<float> start = random_floats({40, 40});
  OpRunner runner;
  const ValueId x = runner.floats(start);
  const ValueId doubled = runner.node("aten.mul.Tensor", {{"self", of(x)}, {"other", number(2)}}, {40, 40});
  const ValueId turned =
      runner.node("aten.permute.default", {{"self", of(doubled)}, {"dims", numbers({"1", "0"})}}, {40, 40});
  const ValueId sum = runner.node("aten.add.Tensor", {{"self", of(doubled)}, {"other", of(turned)}}, {40, 40});
  std::vector<float> expected;
  Dense<float> copy = start;
  for_each_index({40, 40}, [&](const Sizes& index) {
    expected.push_back(2 * copy.at(index) + 2 * copy.at({index[1], index[0]}));
  });
  expect_near(runner.run<float>(sum), expected, 1e-6F);
}

TEST(ElementwiseOps, the_number_of_threads_does_not_change_results) {
  for (const Sizes& sizes : {Sizes{2, 40, 1000}, Sizes{100000}, Sizes{1, 7, 9000}}) {
    const Dense<float> a = random_floats(sizes, 1);
    OpRunner runner;
    const ValueId x = runner.floats(a);
    const ValueId other = runner.floats(random_floats({sizes.back()}, 2));
    const ValueId sum = runner.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(other)}}, sizes);
    const ValueId y = runner.node("aten.tanh.default", {{"self", of(sum)}}, sizes);
    const Result<std::vector<float>> alone = runner.run<float>(y, 1);
    const Result<std::vector<float>> together = runner.run<float>(y, 3);
    ASSERT_TRUE(alone.ok() && together.ok());
    EXPECT_EQ(*alone, *together);
  }
}

}  // namespace
}  // namespace accord::engine
