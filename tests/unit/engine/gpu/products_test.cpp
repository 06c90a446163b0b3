// Which products an engine computes in one launch, and which kernels it uses for them.
#include <gmock/gmock.h>

#include <array>

#include "unit/engine/gpu/decoder_steps.hpp"
#include "unit/engine/gpu/graphs.hpp"
#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::floats_of;
using accord::testing::HostBlas;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using std::chrono::microseconds;

// Returns the launches of each kernel in a step that computes the next token of `sequences` sequences.
std::array<int, 3> launches_of_step(DType dtype, std::int64_t sequences, const std::array<const char*, 3>& kernels) {
  std::array<int, 3> launches = {};
  const DecoderParts decoder(dtype);
  Result<Engine> engine = Engine::assemble(decoder.parts, {}, {.device = kGpu});
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  EXPECT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  EXPECT_TRUE(context->create_cache({.blocks = 16}).ok());
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(sequences));
  std::vector<std::int64_t> ids, positions, rows;
  std::vector<SequenceRows> batch;
  for (std::int64_t i = 0; i < sequences; ++i) {
    blocks[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
    ids.push_back(i);
    positions.push_back(0);
    rows.push_back(i);
    batch.push_back({1, 0, std::span(blocks).subspan(static_cast<std::size_t>(i), 1)});
  }
  std::vector<HostTensor> inputs = {whole_numbers({sequences}, ids), whole_numbers({sequences}, positions),
                                    whole_numbers({sequences}, rows)};
  const auto count = [&](std::size_t i) { return HostRuntime::instance().launches(kernels[i]); };
  for (std::size_t i = 0; i < kernels.size(); ++i) launches[i] = -count(i);
  const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs), batch);
  EXPECT_TRUE(outputs.ok()) << outputs.status().to_string();
  for (std::size_t i = 0; i < kernels.size(); ++i) launches[i] += count(i);
  return launches;
}

class DeviceLaunches : public accord::testing::DeviceEngines {};

// For each of the two layers: query, key and value; the output of attention; weight and gate; the layer after these.
// And the head.
TEST_F(DeviceLaunches, a_decode_step_has_four_products_for_each_layer) {
  using ::testing::ElementsAre;
  const int products = HostBlas::instance().products();
  const auto launches = [](DType dtype, std::int64_t sequences) {
    const bool is_float32 = dtype == DType::kFloat32;
    return launches_of_step(dtype, sequences,
                            {sequences == 1   ? "engine_product_1_row"
                             : sequences == 2 ? "engine_product_2_rows"
                                              : "engine_product_8_rows",
                             dtype == DType::kFloat16 ? "engine_float16_8_rows" : "engine_bfloat16_8_rows",
                             is_float32 ? "engine_product_4_rows" : "engine_elementwise_words_bfloat16"});
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(to_string(dtype));
    const bool is_float32 = dtype == DType::kFloat32;
    EXPECT_THAT(launches(dtype, 1), ElementsAre(9, 0, 0));
    EXPECT_THAT(launches(dtype, 2), ElementsAre(9, 0, 0));
    EXPECT_THAT(launches(dtype, 3), is_float32 ? ElementsAre(0, 0, 9) : ElementsAre(0, 9, 0));
    EXPECT_THAT(launches(dtype, 8), is_float32 ? ElementsAre(9, 0, 0) : ElementsAre(0, 9, 0));
  }
  EXPECT_EQ(HostBlas::instance().products(), products) << "the library computes none of them";
}

class DeviceLinears : public DeviceOps {
 protected:
  static constexpr std::int64_t kInputs = 64;

  // Layers of one input, whose outputs are used by columns. Key and value have a fourth of the query's outputs.
  static ValueId query_key_value(OneGraph& graph, ValueId x, std::int64_t rows, DType dtype, bool has_bias) {
    std::vector<ValueId> parts;
    for (const std::int64_t outputs : {std::int64_t{1024}, std::int64_t{768}, std::int64_t{768}}) {
      Arguments arguments = {{"input", of(x)}, {"weight", of(graph.weight(dtype, {outputs, kInputs}))}};
      if (has_bias) arguments["bias"] = of(graph.weight(dtype, {outputs}));
      parts.push_back(graph.node("aten.linear.default", arguments, {rows, outputs}, dtype));
    }
    const ValueId key =
        graph.node("aten.add.Tensor", {{"self", of(parts[1])}, {"other", of(parts[2])}}, {rows, 768}, dtype);
    const ValueId heads =
        graph.node("aten.view.default", {{"self", of(parts[0])}, {"size", numbers({std::to_string(rows), "4", "256"})}},
                   {rows, 4, 256}, dtype);
    const ValueId turned = graph.node("aten.permute.default", {{"self", of(heads)}, {"dims", numbers({"1", "0", "2"})}},
                                      {4, rows, 256}, dtype);
    const ValueId negative = graph.node("aten.neg.default", {{"self", of(turned)}}, {4, rows, 256}, dtype);
    const ValueId flat =
        graph.node("aten.view.default", {{"self", of(negative)}, {"size", numbers({std::to_string(rows * 1024)})}},
                   {rows * 1024}, dtype);
    const ValueId other = graph.node(
        "aten.view.default", {{"self", of(key)}, {"size", numbers({std::to_string(rows * 768)})}}, {rows * 768}, dtype);
    return graph.node("aten.cat.default",
                      {{"tensors", std::vector<ValueRef>{ValueRef{flat}, ValueRef{other}}}, {"dim", number(0)}},
                      {rows * 1792}, dtype);
  }
};

TEST_P(DeviceLinears, layers_whose_weights_follow_each_other_are_one_product_of_many_rows) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool has_bias : {false, true}) {
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, std::int64_t{12}}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + ", " + std::to_string(rows) + " rows" +
                     (has_bias ? ", with biases" : ""));
        OneGraph graph;
        const ValueId x = graph.input(dtype, {rows, kInputs});
        const ValueId y = query_key_value(graph, x, rows, dtype, has_bias);
        const int products = HostBlas::instance().products();
        expect_same(graph, y, 8 * error_of(dtype));
        if (!counts()) continue;
        const int of_run = rows <= 8 ? 0 : has_bias ? 3 : 1;
        EXPECT_EQ(HostBlas::instance().products() - products, 2 * of_run) << "in a run and in a captured one";
      }
    }
  }
}

TEST_P(DeviceLinears, a_gated_layer_is_one_product_of_many_rows_and_the_gate) {
  constexpr std::int64_t kOutputs = 512, kRows = 11;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const bool has_bias : {false, true}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + (has_bias ? ", with a bias" : ""));
      OneGraph graph;
      const ValueId x = graph.input(dtype, {kRows, 96});
      const ValueId up = graph.weight(dtype, {kOutputs, 96}, 0.3F), gate = graph.weight(dtype, {kOutputs, 96}, 0.3F);
      Arguments arguments = {{"input", of(x)}, {"weight", of(gate)}};
      if (has_bias) arguments["bias"] = of(graph.weight(dtype, {kOutputs}));
      const ValueId gated = graph.node("aten.linear.default", arguments, {kRows, kOutputs}, dtype);
      const ValueId active = graph.node("aten.silu.default", {{"self", of(gated)}}, {kRows, kOutputs}, dtype);
      const ValueId plain =
          graph.node("aten.linear.default", {{"input", of(x)}, {"weight", of(up)}}, {kRows, kOutputs}, dtype);
      const ValueId y =
          graph.node("aten.mul.Tensor", {{"self", of(active)}, {"other", of(plain)}}, {kRows, kOutputs}, dtype);
      const auto gates = [&] {
        return HostRuntime::instance().launches("engine_elementwise_words_" + std::string(to_string(dtype)));
      };
      const int products = HostBlas::instance().products(), before = gates();
      expect_same(graph, y, 16 * error_of(dtype));
      if (!counts()) continue;
      EXPECT_EQ(HostBlas::instance().products() - products, has_bias ? 4 : 2);
      EXPECT_EQ(gates() - before, 2);
    }
  }
}

TEST_P(DeviceLinears, weights_that_two_nodes_share_are_multiplied_wherever_they_are) {
  constexpr std::int64_t kRows = 10, kOutputs = 512;
  OneGraph graph;
  const ValueId x = graph.input(DType::kFloat32, {kRows, kInputs}), z = graph.input(DType::kFloat32, {kRows, kInputs});
  std::vector<ValueId> weights, outputs;
  for (int i = 0; i < 3; ++i) weights.push_back(graph.weight(DType::kFloat32, {kOutputs, kInputs}));
  for (const auto& [input, used] : {std::pair{x, std::array{0, 1}}, std::pair{z, std::array{2, 1}}}) {
    for (const int weight : used)
      outputs.push_back(graph.node("aten.linear.default",
                                   {{"input", of(input)}, {"weight", of(weights[static_cast<std::size_t>(weight)])}},
                                   {kRows, kOutputs}, DType::kFloat32));
  }
  expect_same(graph, outputs, 8 * kFloat32Error);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceLinears, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceLinears, accord::testing::kGpus);

/// A layer that all ranks compute, one that is divided by its outputs, and one that is divided by its inputs.
class DeviceChoices : public DeviceModels {
 protected:
  static constexpr std::int64_t kRows = 12, kInputs = 16, kWhole = 24, kDivided = 32;

  void SetUp() override {
    ASSERT_TRUE(kChosen);
    GraphWriter writer;
    Weights weights;
    const auto rows = std::to_string(kRows);
    const auto linear = [&](const std::string& name, ValueId x, std::int64_t in, std::int64_t out) {
      weights[name] = accord::testing::some_numbers(static_cast<std::size_t>(in * out), static_cast<unsigned>(out));
      const ValueId weight = writer.parameter(name, shape_of({std::to_string(out), std::to_string(in)}));
      return writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(weight)}},
                         shape_of({rows, std::to_string(out)}));
    };
    const ValueId x = writer.input("x", shape_of({rows, std::to_string(kInputs)}));
    const ValueId whole = linear("whole", x, kInputs, kWhole);
    const ValueId column = linear("column", whole, kWhole, kDivided);
    writer.output(linear("row", column, kDivided, kInputs));
    std::map<std::string, Sharding> shardings = {{"column", Sharding{"tp", 0, 8}}, {"row", Sharding{"tp", 1, 8}}};
    write_package(path("layers"), writer.graph(), weights, shardings);
    const ValueId up = linear("up", whole, kWhole, 2 * kDivided);
    writer.output(linear("down", up, 2 * kDivided, kInputs));
    shardings.insert({{"up", Sharding{"ep", 0, 8}}, {"down", Sharding{"ep", 1, 8}}});
    write_package(path("two_groups"), writer.graph(), weights, shardings);
  }
  ~DeviceChoices() override { HostBlas::instance().set_candidates({microseconds(0)}); }

  static bool is_chosen(std::int64_t n, std::int64_t k) {
    device::Product product;
    product.m = kRows;
    product.n = n;
    product.k = k;
    product.a.row_stride = product.b.row_stride = k;
    product.c.row_stride = n;
    product.uses_choice = true;
    return HostBlas::instance().candidates(product, kGpu).value() == 1;
  }
};

TEST_F(DeviceChoices, products_of_this_rank_alone_use_the_fastest_kernel) {
  for (const int size : {1, 2}) {
    SCOPED_TRACE(size);
    HostBlas::instance().set_candidates({microseconds(3000), microseconds(1)});
    on_ranks("layers", size, {.device = kGpu, .outputs = DeviceType::kCpu}, [&](Engine& engine, Rank) {
      Result<EngineContext> context = engine.create_context();
      std::vector<HostTensor> inputs = {
          HostTensor(DType::kFloat32, {kRows, kInputs}, accord::testing::some_numbers(kRows * kInputs))};
      std::vector<float> first;
      for (int run = 0; run < 3; ++run) {  // directly, captured, as a graph
        const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
        ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
        if (run == 0) first = floats_of((*outputs)[0]);
        expect_near(floats_of((*outputs)[0]), first, 0.0F);
      }
    });
    EXPECT_EQ(is_chosen(kWhole, kInputs), size == 1) << "a layer that all ranks compute";
    EXPECT_TRUE(is_chosen(kDivided / size, kWhole));
    EXPECT_TRUE(is_chosen(kInputs, kDivided / size));
  }
}

TEST_F(DeviceChoices, products_of_ranks_in_two_groups_use_the_first_kernel) {
  HostBlas::instance().set_candidates({microseconds(3000), microseconds(1)});
  accord::testing::run_thread_ranks(4, {.timeout = std::chrono::seconds(60)}, [&](const Communicator& comm) {
    Communicator all = comm;
    const Rank row = comm.rank() / 2, column = comm.rank() % 2;
    CommunicatorOptions tp, ep;
    tp.name = "tp";
    ep.name = "ep";
    const auto of_tp = all.split(row, column, tp), of_ep = all.split(column, row, ep);
    ASSERT_TRUE(of_tp.ok() && of_ep.ok()) << of_tp.status().to_string() << of_ep.status().to_string();
    LoadOptions options{.device = kGpu, .outputs = DeviceType::kCpu};
    options.device.index = static_cast<std::int16_t>(comm.rank());
    Result<Engine> engine = Engine::load_and_bind(path("two_groups"), {{"tp", **of_tp}, {"ep", **of_ep}}, options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    Result<EngineContext> context = engine->create_context();
    std::vector<HostTensor> inputs = {
        HostTensor(DType::kFloat32, {kRows, kInputs}, accord::testing::some_numbers(kRows * kInputs))};
    const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
  });
  EXPECT_FALSE(is_chosen(kDivided / 2, kWhole)) << "two ranks have equal parts";
  EXPECT_FALSE(is_chosen(kDivided, kWhole));
}

TEST_F(DeviceChoices, products_of_canonical_ranks_are_not_timed) {
  HostBlas::instance().set_candidates({microseconds(3000), microseconds(1)});
  const int products = HostBlas::instance().products();
  on_ranks("layers", 2, {.device = kGpu, .outputs = DeviceType::kCpu, .canonical_ranks = 2}, [&](Engine& engine, Rank) {
    Result<EngineContext> context = engine.create_context();
    std::vector<HostTensor> inputs = {
        HostTensor(DType::kFloat32, {kRows, kInputs}, accord::testing::some_numbers(kRows * kInputs))};
    const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
  });
  EXPECT_EQ(HostBlas::instance().products(), products);
}

}  // namespace
}  // namespace accord::engine
