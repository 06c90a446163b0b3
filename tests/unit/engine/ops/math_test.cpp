// Products, attention, norms, reductions and gathers, compared with loops that follow the definition.
#include <gmock/gmock.h>

#include <cmath>

#include "unit/engine/ops/op_runner.hpp"

namespace accord::engine {
namespace {

using ::testing::HasSubstr;

TEST(MatrixOps, products_are_sums_of_products) {
  for (const int threads : {1, 3}) {
    Dense<float> a = random_floats({70, 9}, 1);
    Dense<float> b = random_floats({9, 5}, 2);
    const Dense<float> bias = random_floats({5}, 3);
    std::vector<float> product;
    std::vector<float> biased;
    for_each_index({70, 5}, [&](const Sizes& i) {
      double sum = 0;
      for (std::int64_t k = 0; k < 9; ++k) sum += double{a.at({i[0], k})} * double{b.at({k, i[1]})};
      product.push_back(static_cast<float>(sum));
      biased.push_back(static_cast<float>(sum + double{bias.values[static_cast<std::size_t>(i[1])]}));
    });
    OpRunner runner;
    const ValueId x = runner.floats(a);
    const ValueId y = runner.floats(b);
    const ValueId z = runner.floats(bias);
    const ValueId turned =
        runner.node("aten.permute.default", {{"self", of(y)}, {"dims", numbers({"1", "0"})}}, {5, 9});
    expect_near(runner.run<float>(runner.node("aten.mm.default", {{"self", of(x)}, {"mat2", of(y)}}, {70, 5}), threads),
                product, 1e-5F);
    expect_near(
        runner.run<float>(
            runner.node("aten.addmm.default", {{"self", of(z)}, {"mat1", of(x)}, {"mat2", of(y)}}, {70, 5}), threads),
        biased, 1e-5F);
    expect_near(runner.run<float>(runner.node("aten.linear.default",
                                              {{"input", of(x)}, {"weight", of(turned)}, {"bias", of(z)}}, {70, 5}),
                                  threads),
                biased, 1e-5F);
  }
}

TEST(MatrixOps, batches_may_be_expanded_and_transposed) {
  Dense<float> a = random_floats({3, 4, 5}, 1);
  Dense<float> b = random_floats({1, 6, 5}, 2);
  std::vector<float> expected;
  for_each_index({3, 4, 6}, [&](const Sizes& i) {
    double sum = 0;
    for (std::int64_t k = 0; k < 5; ++k) sum += double{a.at({i[0], i[1], k})} * double{b.at({0, i[2], k})};
    expected.push_back(static_cast<float>(sum));
  });
  OpRunner runner;
  const ValueId x = runner.floats(a);
  const ValueId y = runner.floats(b);
  const ValueId wide =
      runner.node("aten.expand.default", {{"self", of(y)}, {"size", numbers({"3", "6", "5"})}}, {3, 6, 5});
  const ValueId turned =
      runner.node("aten.permute.default", {{"self", of(wide)}, {"dims", numbers({"0", "2", "1"})}}, {3, 5, 6});
  for (const int threads : {1, 2}) {
    expect_near(
        runner.run<float>(runner.node("aten.bmm.default", {{"self", of(x)}, {"mat2", of(turned)}}, {3, 4, 6}), threads),
        expected, 1e-5F);
  }
}

/// scaled_dot_product_attention by its definition, in double.
struct AttentionReference {
  Dense<float> q, k, v;
  std::function<double(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> mask = [](auto...) {
    return 0.0;
  };

  std::vector<float> run(double scale) {
    std::vector<float> y;
    const std::int64_t group = q.sizes[1] / k.sizes[1];
    for_each_index({q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]}, [&](const Sizes& at) {
      double total = 0;
      double sum = 0;
      for (std::int64_t j = 0; j < k.sizes[2]; ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < q.sizes[3]; ++d)
          score += double{q.at({at[0], at[1], at[2], d})} * double{k.at({at[0], at[1] / group, j, d})};
        const double weight = std::exp(score * scale + mask(at[0], at[1], at[2], j));
        total += weight;
        sum += weight * double{v.at({at[0], at[1] / group, j, at[3]})};
      }
      y.push_back(total == 0 ? 0.0F : static_cast<float>(sum / total));
    });
    return y;
  }
};

TEST(AttentionOps, every_kind_of_mask_and_grouped_heads) {
  for (const int threads : {1, 3}) {
    AttentionReference reference{random_floats({2, 4, 5, 8}, 1), random_floats({2, 2, 7, 8}, 2),
                                 random_floats({2, 2, 7, 3}, 3)};
    const Dense<unsigned char> allowed = dense<unsigned char>({2, 1, 1, 7}, [](std::int64_t i) { return i % 3 != 1; });
    const Dense<float> bias = random_floats({4, 5, 7}, 4);
    OpRunner runner;
    const Arguments inputs = {{"query", of(runner.floats(reference.q))},
                              {"key", of(runner.floats(reference.k))},
                              {"value", of(runner.floats(reference.v))},
                              {"enable_gqa", true}};
    const auto attend = [&](Arguments more) {
      more.insert(inputs.begin(), inputs.end());
      return runner.run<float>(runner.node("aten.scaled_dot_product_attention.default", more, {2, 4, 5, 3}), threads);
    };
    const ValueId bool_mask = runner.bools(allowed);
    const ValueId float_mask = runner.floats(bias);
    const double scale = 1 / std::sqrt(8.0);
    expect_near(attend({}), reference.run(scale), 1e-5F);
    expect_near(attend({{"scale", 0.25}}), reference.run(0.25), 1e-5F);
    reference.mask = [&](auto b, auto, auto, auto j) {
      return allowed.values[static_cast<std::size_t>(b * 7 + j)] ? 0.0 : -INFINITY;
    };
    expect_near(attend({{"attn_mask", of(bool_mask)}}), reference.run(scale), 1e-5F);
    reference.mask = [&](auto, auto h, auto i, auto j) {
      return double{bias.values[static_cast<std::size_t>((h * 5 + i) * 7 + j)]};
    };
    expect_near(attend({{"attn_mask", of(float_mask)}}), reference.run(scale), 1e-5F);
    reference.mask = [&](auto, auto, auto i, auto j) { return j <= i ? 0.0 : -INFINITY; };
    expect_near(attend({{"is_causal", true}}), reference.run(scale), 1e-5F);
  }
}

TEST(AttentionOps, three_dimensions_are_a_batch_of_one_and_converting_back_to_rows_is_free) {
  AttentionReference reference{random_floats({1, 4, 5, 8}, 1), random_floats({1, 4, 5, 8}, 2),
                               random_floats({1, 4, 5, 8}, 3)};
  OpRunner runner;
  std::map<std::string, ValueId> heads;
  for (const auto& [name, tensor] :
       std::map<std::string, Dense<float>>{{"query", reference.q}, {"key", reference.k}, {"value", reference.v}}) {
    Dense<float> flat = tensor;
    flat.sizes = {4, 5, 8};
    heads[name] = runner.floats(flat);
  }
  const ValueId y =
      runner.node("aten.scaled_dot_product_attention.default",
                  {{"query", of(heads["query"])}, {"key", of(heads["key"])}, {"value", of(heads["value"])}}, {4, 5, 8});
  expect_near(runner.run<float>(y), reference.run(1 / std::sqrt(8.0)), 1e-5F);

  OpRunner rows;
  const ValueId q = rows.floats(reference.q);
  const ValueId attended = rows.node("aten.scaled_dot_product_attention.default",
                                     {{"query", of(q)}, {"key", of(q)}, {"value", of(q)}}, {1, 4, 5, 8});
  const ValueId turned = rows.node("aten.permute.default",
                                   {{"self", of(attended)}, {"dims", numbers({"0", "2", "1", "3"})}}, {1, 5, 4, 8});
  const ValueId joined =
      rows.node("aten.view.default", {{"self", of(turned)}, {"size", numbers({"1", "5", "-1"})}}, {1, 5, 32});
  ASSERT_TRUE(rows.run<float>(joined).ok());
  EXPECT_EQ(rows.steps(), 1U);
}

std::vector<float> layer_norm_reference(const Dense<float>& x, const Dense<float>& weight, const Dense<float>& bias,
                                        double eps) {
  const auto width = static_cast<std::size_t>(x.sizes.back());
  std::vector<float> y(x.values.size());
  for (std::size_t row = 0; row < x.values.size(); row += width) {
    double mean = 0;
    double variance = 0;
    for (std::size_t i = 0; i < width; ++i) mean += double{x.values[row + i]} / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i)
      variance += std::pow(double{x.values[row + i]} - mean, 2) / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) {
      y[row + i] =
          static_cast<float>((double{x.values[row + i]} - mean) / std::sqrt(variance + eps) * double{weight.values[i]} +
                             double{bias.values[i]});
    }
  }
  return y;
}

TEST(NormalizationOps, layer_norm_of_a_sum_also_gives_the_sum) {
  for (const int threads : {1, 4}) {
    const Dense<float> a = random_floats({3, 30, 17}, 1);
    const Dense<float> b = random_floats({3, 30, 17}, 2);
    const Dense<float> weight = random_floats({17}, 3);
    const Dense<float> bias = random_floats({17}, 4);
    Dense<float> sum = a;
    for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += b.values[i];
    OpRunner runner;
    const ValueId x = runner.floats(a);
    const ValueId z = runner.floats(b);
    const Arguments weights = {{"normalized_shape", numbers({"17"})},
                               {"weight", of(runner.floats(weight))},
                               {"bias", of(runner.floats(bias))},
                               {"eps", 1e-12}};
    Arguments plain = weights;
    plain["input"] = of(x);
    expect_near(runner.run<float>(runner.node("aten.layer_norm.default", plain, {3, 30, 17}), threads),
                layer_norm_reference(a, weight, bias, 1e-12), 2e-5F);
    Arguments fused = weights;
    fused["self"] = of(x);
    fused["residual"] = of(z);
    const ValueId norm = runner.node("accord.add_layer_norm", fused, {3, 30, 17});
    const ValueId both = runner.writer().more_output(shape_of({"3", "30", "17"}));
    expect_near(runner.run<float>(norm, threads), layer_norm_reference(sum, weight, bias, 1e-12), 2e-5F);
    const ValueId difference = runner.node("aten.sub.Tensor", {{"self", of(both)}, {"other", of(norm)}}, {3, 30, 17});
    std::vector<float> expected = layer_norm_reference(sum, weight, bias, 1e-12);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = sum.values[i] - expected[i];
    expect_near(runner.run<float>(difference, threads), expected, 2e-5F);
  }
}

TEST(NormalizationOps, softmax_sums_to_one_over_its_dimension) {
  for (const std::int64_t dim : {0, 1, -1}) {
    Dense<float> x = random_floats({4, 5, 6});
    std::vector<float> expected;
    for_each_index(x.sizes, [&](const Sizes& at) {
      const auto along = static_cast<std::size_t>(dim < 0 ? dim + 3 : dim);
      double total = 0;
      for (std::int64_t i = 0; i < x.sizes[along]; ++i) {
        Sizes other = at;
        other[along] = i;
        total += std::exp(double{x.at(other)});
      }
      expected.push_back(static_cast<float>(std::exp(double{x.at(at)}) / total));
    });
    OpRunner runner;
    const ValueId y =
        runner.node("aten._softmax.default",
                    {{"self", of(runner.floats(x))}, {"dim", number(dim)}, {"half_to_float", false}}, {4, 5, 6});
    expect_near(runner.run<float>(y), expected, 1e-6F);
  }
}

TEST(ReductionOps, sums_means_extremes_and_norms_over_any_dimensions) {
  Dense<float> x = random_floats({3, 4, 5});
  const auto reduce = [&](const std::vector<int>& dims, double start,
                          const std::function<double(double, double)>& add) {
    Dense<double> y{{1, 4, 1}, std::vector<double>(4, start)};
    if (dims.size() == 3) y = {{1, 1, 1}, {start}};
    for_each_index(x.sizes, [&](const Sizes& at) { y.at(at) = add(y.at(at), double{x.at(at)}); });
    return std::vector<float>(y.values.begin(), y.values.end());
  };
  const auto plus = [](double a, double b) { return a + b; };
  OpRunner runner;
  const ValueId v = runner.floats(x);
  const Argument outer = numbers({"0", "-1"});
  expect_near(runner.run<float>(runner.node("aten.sum.dim_IntList", {{"self", of(v)}, {"dim", outer}}, {4})),
              reduce({0, 2}, 0, plus), 1e-6F);
  expect_near(runner.run<float>(
                  runner.node("aten.sum.dim_IntList", {{"self", of(v)}, {"dim", outer}, {"keepdim", true}}, {1, 4, 1})),
              reduce({0, 2}, 0, plus), 1e-6F);
  expect_near(runner.run<float>(runner.node("aten.sum.dim_IntList", {{"self", of(v)}, {"dim", numbers({})}}, {})),
              reduce({0, 1, 2}, 0, plus), 1e-6F);
  expect_near(runner.run<float>(runner.node("aten.mean.dim", {{"self", of(v)}, {"dim", outer}}, {4})),
              reduce({0, 2}, 0, [](double a, double b) { return a + b / 15; }), 1e-6F);
  expect_near(runner.run<float>(runner.node("aten.amax.default", {{"self", of(v)}, {"dim", outer}}, {4})),
              reduce({0, 2}, -INFINITY, [](double a, double b) { return std::max(a, b); }), 1e-6F);
  const std::vector<float> squares = reduce({0, 2}, 0, [](double a, double b) { return a + b * b; });
  std::vector<float> norms;
  for (const float square : squares) norms.push_back(std::sqrt(square));
  expect_near(runner.run<float>(runner.node("aten.linalg_vector_norm.default",
                                            {{"self", of(v)}, {"ord", number(2)}, {"dim", outer}}, {4})),
              norms, 1e-6F);
  const ValueId n = runner.integers({{2, 2}, {1, 2, 3, 4}});
  expect_equal<std::int64_t>(
      runner.run<std::int64_t>(
          runner.node("aten.sum.dim_IntList", {{"self", of(n)}, {"dim", numbers({"0"})}}, {2}, DType::kInt64)),
      {4, 6});
  expect_near(runner.run<float>(runner.node(
                  "aten.mean.dim", {{"self", of(n)}, {"dim", numbers({"1"})}, {"dtype", DType::kFloat32}}, {2})),
              {1.5F, 3.5F}, 0);
}

TEST(IndexOps, rows_are_selected_and_a_bad_id_is_named) {
  OpRunner runner;
  const ValueId table = runner.floats({{3, 2}, {0, 1, 10, 11, 20, 21}});
  const ValueId ids = runner.integers({{2, 2}, {2, 0, 1, 2}});
  const ValueId bad = runner.integers({{1, 3}, {0, 1, 3}});
  expect_equal<float>(runner.run<float>(runner.node("aten.embedding.default",
                                                    {{"weight", of(table)}, {"indices", of(ids)}}, {2, 2, 2})),
                      {20, 21, 0, 1, 10, 11, 20, 21});
  const Status status =
      runner.run<float>(runner.node("aten.embedding.default", {{"weight", of(table)}, {"indices", of(bad)}}, {1, 3, 2}))
          .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("id 3 at position 2 is outside [0, 3)"));
}

TEST(IndexOps, tensors_of_ids_broadcast_as_in_numpy) {
  OpRunner runner;
  Dense<float> x = random_floats({4, 5, 3});
  const Dense<std::int64_t> rows{{2, 1}, {3, -1}};
  const Dense<std::int64_t> columns{{4}, {0, 4, 2, -5}};
  std::vector<float> expected;
  for (const std::int64_t row : {3, 3}) {
    for (const std::int64_t column : {0, 4, 2, 0}) {
      for (std::int64_t i = 0; i < 3; ++i) expected.push_back(x.at({row, column, i}));
    }
  }
  const ValueId v = runner.floats(x);
  const ValueId r = runner.integers(rows);
  const ValueId c = runner.integers(columns);
  expect_equal<float>(
      runner.run<float>(
          runner.node("aten.index.Tensor", {{"self", of(v)}, {"indices", std::vector<ValueRef>{{r}, {c}}}}, {2, 4, 3})),
      expected);
  std::vector<float> middle;
  for (std::int64_t a = 0; a < 4; ++a) {
    for (const std::int64_t column : {0, 4, 2, 0}) {
      for (std::int64_t i = 0; i < 3; ++i) middle.push_back(x.at({a, column, i}));
    }
  }
  expect_equal<float>(
      runner.run<float>(runner.node("aten.index.Tensor",
                                    {{"self", of(v)}, {"indices", std::vector<ValueRef>{{-1}, {c}}}}, {4, 4, 3})),
      middle);
  // index_select counts from the front only.
  const ValueId from_front = runner.integers({{4}, {0, 4, 2, 0}});
  const auto select = [&](ValueId index) {
    return runner.run<float>(runner.node("aten.index_select.default",
                                         {{"self", of(v)}, {"dim", number(1)}, {"index", of(index)}}, {4, 4, 3}));
  };
  expect_equal<float>(select(from_front), middle);
  EXPECT_THAT(select(c).status().message(), HasSubstr("id -5 at position 3 is outside [0, 5)"));
}

TEST(IndexOps, gather_follows_its_index_and_cat_concatenates) {
  OpRunner runner;
  const ValueId x = runner.floats({{2, 3}, {1, 2, 3, 4, 5, 6}});
  const ValueId index = runner.integers({{2, 2}, {2, 0, 1, 1}});
  const ValueId y = runner.floats({{2, 1}, {7, 8}});
  expect_equal<float>(runner.run<float>(runner.node(
                          "aten.gather.default", {{"self", of(x)}, {"dim", number(1)}, {"index", of(index)}}, {2, 2})),
                      {3, 1, 5, 5});
  expect_equal<float>(
      runner.run<float>(
          runner.node("aten.cat.default", {{"tensors", std::vector<ValueRef>{{x}, {y}}}, {"dim", number(-1)}}, {2, 4})),
      {1, 2, 3, 7, 4, 5, 6, 8});
}

TEST(CreationOps, constants_are_created_once_and_not_in_each_run) {
  OpRunner runner;
  const ValueId counting = runner.node(
      "aten.arange.start_step", {{"start", number(3)}, {"end", number(10)}, {"step", number(3)}}, {3}, DType::kInt64);
  const ValueId ones = runner.node("aten.full.default", {{"size", numbers({"3"})}, {"fill_value", 1.0}}, {3});
  const ValueId sum = runner.node("aten.add.Tensor", {{"self", of(counting)}, {"other", of(ones)}}, {3});
  expect_equal<float>(runner.run<float>(sum), {4, 7, 10});
  EXPECT_EQ(runner.steps(), 1U) << "only the copy to the output is left";
}

}  // namespace
}  // namespace accord::engine
