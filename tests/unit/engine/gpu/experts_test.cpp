// Mixtures of experts on a device match a slow reference and the CPU's kernels.
#include <gmock/gmock.h>

#include "unit/engine/gpu/graphs.hpp"

namespace accord::engine {
namespace {

using accord::testing::floats_of;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using accord::testing::some_numbers;
using ::testing::HasSubstr;

/// Rows that pass through the experts that they chose.
struct Mixture {
  DType dtype = DType::kFloat32;
  std::int64_t rows = 1, top_k = 2;
  std::int64_t experts = 5, hidden = 24, inner = 40;
  bool gated = true;
  std::string activation = "silu";
  bool has_gate_of_its_own = false;  ///< biases, a limit, a factor and an offset
  DType id_dtype = DType::kInt64;
  /// [rows, top_k]. If empty, the choices of each row differ and no row chooses the last expert.
  std::vector<std::int64_t> ids = {};

  std::vector<std::int64_t> choices() const {
    std::vector<std::int64_t> chosen = ids;
    for (std::int64_t row = 0; ids.empty() && row < rows; ++row)
      for (std::int64_t j = 0; j < top_k; ++j) chosen.push_back((row * row + row / 3 + j) % (experts - 1));
    return chosen;
  }
};

constexpr float kScale = 0.125F;  // of weights, so that the outputs of experts are about as large as their rows

OneGraph graph_of(const Mixture& mixture, ValueId& y) {
  OneGraph graph;
  const Shapes choices = {mixture.rows, mixture.top_k}, wide = {mixture.experts, mixture.inner, mixture.hidden};
  const std::vector<std::int64_t> ids = mixture.choices();
  const ValueId x = graph.input(mixture.dtype, {mixture.rows, mixture.hidden});
  const ValueId chosen = graph.input(mixture.id_dtype, choices, std::vector<float>(ids.begin(), ids.end()));
  const ValueId weights = graph.input(DType::kFloat32, choices);
  const ValueId up = graph.weight(mixture.dtype, wide, kScale);
  const ValueId down = graph.weight(mixture.dtype, {mixture.experts, mixture.hidden, mixture.inner}, kScale);
  Arguments arguments = {{"input", of(x)}, {"experts", of(chosen)}, {"weights", of(weights)},
                         {"up", of(up)},   {"down", of(down)},      {"activation", mixture.activation}};
  if (mixture.gated) arguments["gate"] = of(graph.weight(mixture.dtype, wide, kScale));
  if (mixture.has_gate_of_its_own) {
    arguments["up_bias"] = of(graph.input(mixture.dtype, {mixture.experts, mixture.inner}));
    if (mixture.gated) arguments["gate_bias"] = of(graph.input(mixture.dtype, {mixture.experts, mixture.inner}));
    arguments["limit"] = 0.75;
    arguments["alpha"] = 1.5;
    arguments["offset"] = 1.0;
  }
  y = graph.node("accord.experts.default", arguments, {mixture.rows, mixture.hidden}, mixture.dtype);
  return graph;
}

class DeviceExperts : public DeviceOps {
 protected:
  static void expect_same_as_on_the_cpu(const Mixture& mixture) {
    ValueId y = -1;
    OneGraph graph = graph_of(mixture, y);
    expect_same(graph, y, 2 * error_of(mixture.dtype));
  }
};

TEST_P(DeviceExperts, rows_are_computed_by_their_chosen_experts) {
  const Mixture mixture{.rows = 7, .top_k = 3};
  const std::vector<std::int64_t> ids = mixture.choices();
  const auto scaled = [](std::int64_t count, unsigned seed) {
    std::vector<float> values = some_numbers(static_cast<std::size_t>(count), seed);
    for (float& value : values) value *= kScale;
    return values;
  };
  const std::int64_t hidden = mixture.hidden, inner = mixture.inner, weights = mixture.experts * inner * hidden;
  const std::vector<float> x = some_numbers(static_cast<std::size_t>(mixture.rows * hidden), 1);
  const std::vector<float> factors = some_numbers(ids.size(), 3);
  const std::vector<float> up = scaled(weights, 7), down = scaled(weights, 8), gate = scaled(weights, 9);
  const auto at = [](const std::vector<float>& values, std::int64_t i) {
    return double{values[static_cast<std::size_t>(i)]};
  };
  std::vector<float> expected;
  for (std::int64_t row = 0; row < mixture.rows; ++row) {
    std::vector<double> y(static_cast<std::size_t>(hidden), 0.0);
    for (std::int64_t j = 0; j < mixture.top_k; ++j) {
      const std::int64_t expert = ids[static_cast<std::size_t>(row * mixture.top_k + j)];
      for (std::int64_t i = 0; i < inner; ++i) {
        double wide = 0.0, gated = 0.0;
        for (std::int64_t k = 0; k < hidden; ++k) {
          wide += at(x, row * hidden + k) * at(up, (expert * inner + i) * hidden + k);
          gated += at(x, row * hidden + k) * at(gate, (expert * inner + i) * hidden + k);
        }
        const double active = gated / (1 + std::exp(-gated)) * wide * at(factors, row * mixture.top_k + j);
        for (std::int64_t k = 0; k < hidden; ++k)
          y[static_cast<std::size_t>(k)] += active * at(down, (expert * hidden + k) * inner + i);
      }
    }
    expected.insert(expected.end(), y.begin(), y.end());
  }
  ValueId y = -1;
  OneGraph graph = graph_of(mixture, y);
  const Result<Outputs> outputs = run_on(kGpu, graph.parts({y}), graph.inputs());
  ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
  expect_near(outputs->front(), expected, kFloat32Error);
}

TEST_P(DeviceExperts, gates_with_biases_and_limits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t rows : {1, 3, 70}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::string(to_string(dtype)));
      expect_same_as_on_the_cpu({.dtype = dtype, .rows = rows, .has_gate_of_its_own = true});
    }
  }
  expect_same_as_on_the_cpu({.rows = 9, .gated = false, .activation = "relu_squared", .has_gate_of_its_own = true});
}

TEST_P(DeviceExperts, few_rows_and_many_of_each_dtype) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t rows : {1, 2, 3, 8, 9, 70}) {
      for (const std::int64_t top_k : {1, 2, 4}) {
        SCOPED_TRACE(std::to_string(rows) + " rows, top " + std::to_string(top_k) + ", " +
                     std::string(to_string(dtype)));
        const std::string kernel = "engine_experts_" + std::string(to_string(dtype)) + "_gated";
        const int launches = HostRuntime::instance().launches(kernel);
        expect_same_as_on_the_cpu({.dtype = dtype, .rows = rows, .top_k = top_k});
        // About four rows per expert count as many.
        if (counts()) {
          EXPECT_EQ(HostRuntime::instance().launches(kernel) > launches, rows > 8 && rows * top_k > 20);
        }
      }
    }
  }
}

TEST_P(DeviceExperts, widths_that_are_not_multiples_of_a_word) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t rows : {1, 3, 70}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::string(to_string(dtype)));
      expect_same_as_on_the_cpu({.dtype = dtype, .rows = rows, .hidden = 19, .inner = 37});
    }
  }
}

TEST_P(DeviceExperts, activations_with_a_gate_and_without) {
  for (const std::string activation : {"silu", "gelu", "gelu_tanh", "relu", "tanh", "none"}) {
    for (const bool gated : {true, false}) {
      for (const std::int64_t rows : {3, 70}) {
        SCOPED_TRACE(activation + (gated ? " of a gate, " : ", ") + std::to_string(rows) + " rows");
        expect_same_as_on_the_cpu({.rows = rows, .gated = gated, .activation = activation});
      }
    }
  }
}

TEST_P(DeviceExperts, all_rows_choose_one_expert_or_choose_it_twice) {
  for (const std::int64_t rows : {1, 5, 70}) {
    for (const std::int64_t last : {0, 4}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, expert " + std::to_string(last));
      Mixture mixture{.rows = rows, .id_dtype = DType::kInt32};
      mixture.ids.assign(static_cast<std::size_t>(rows * mixture.top_k), last);
      expect_same_as_on_the_cpu(mixture);
    }
  }
}

TEST_P(DeviceExperts, an_invalid_expert_id_is_reported_and_the_next_run_succeeds) {
  for (const std::int64_t rows : {2, 70}) {
    for (const std::int64_t bad : {5, -1}) {
      Mixture mixture{.rows = rows};
      ValueId y = -1;
      OneGraph graph = graph_of(mixture, y);
      std::vector<HostTensor> inputs = graph.inputs();
      const Result<Outputs> expected = run_on({}, graph.parts({y}), inputs);
      Result<Engine> engine = Engine::assemble(graph.parts({y}), {}, {.device = kGpu});
      ASSERT_TRUE(engine.ok() && engine->bind().ok());
      Result<EngineContext> context = engine->create_context();
      std::vector<std::int64_t> ids = mixture.choices();
      ids[3] = bad;
      HostTensor wrong(DType::kInt64, {rows, 2}, std::vector<float>(ids.begin(), ids.end()));
      const std::vector<TensorView> views = {inputs[0].view(), inputs[1].view(), inputs[2].view()};
      for (int run = 0; run < 3; ++run) {
        const Status status = context->run(std::vector{views[0], wrong.view(), views[2]}).status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(status.message(), HasSubstr("accord.experts.default"));
        EXPECT_THAT(status.message(), HasSubstr("id " + std::to_string(bad) + " at position 3 is outside [0, 5)"));
        const Result<std::vector<TensorView>> right = context->run(views);
        ASSERT_TRUE(right.ok()) << right.status().to_string();
        expect_near(floats_of(right->front()), expected->front(), kFloat32Error);
      }
    }
  }
}

TEST_P(DeviceExperts, adapters_are_added_to_a_layer_for_the_rows_that_chose_them) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t rows : {1, 5, 70}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::string(to_string(dtype)));
      OneGraph graph;
      const ValueId x = graph.input(dtype, {rows, 24});
      std::vector<float> ids;
      for (std::int64_t row = 0; row < rows; ++row) ids.push_back(static_cast<float>((row + 2) % 4));  // 0: none
      const ValueId adapters = graph.input(DType::kInt64, {rows}, ids);
      const ValueId weight = graph.weight(dtype, {40, 24}, kScale);
      const ValueId down = graph.weight(dtype, {3, 8, 24}, kScale), up = graph.weight(dtype, {3, 40, 8}, kScale);
      const ValueId bias = graph.weight(dtype, {40}, kScale);
      const ValueId y = graph.node("accord.adapted_linear.default",
                                   {{"input", of(x)},
                                    {"weight", of(weight)},
                                    {"bias", of(bias)},
                                    {"down", of(down)},
                                    {"up", of(up)},
                                    {"adapters", of(adapters)}},
                                   {rows, 40}, dtype);
      expect_same(graph, y, 2 * error_of(dtype));
    }
  }
}

TEST_P(DeviceExperts, rows_with_a_different_dtype_than_their_experts_are_rejected_by_name) {
  OneGraph graph;
  const ValueId x = graph.input(DType::kBFloat16, {3, 24});
  const ValueId ids = graph.input(DType::kInt64, {3, 1}), weights = graph.input(DType::kFloat32, {3, 1});
  const ValueId up = graph.weight(DType::kFloat32, {2, 8, 24}), down = graph.weight(DType::kFloat32, {2, 24, 8});
  const ValueId y =
      graph.node("accord.experts.default",
                 {{"input", of(x)}, {"experts", of(ids)}, {"weights", of(weights)}, {"up", of(up)}, {"down", of(down)}},
                 {3, 24}, DType::kBFloat16);
  const Status status = Engine::assemble(graph.parts({y}), {}, {.device = kGpu}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("model.py:0"));
  EXPECT_THAT(status.message(), HasSubstr("its rows and its experts have different dtypes"));
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceExperts, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceExperts, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
