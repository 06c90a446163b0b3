// Observing engines on devices: every value of the model matches that of an engine on the CPU.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using ::testing::HasSubstr;

/// A value as run_observed() reported it.
struct Seen {
  std::string name, module;
  std::size_t position = 0;
  std::vector<std::int64_t> shape;
  bool has_memory = false;
  Device device;
  std::vector<float> values;
};

Result<std::vector<Seen>> observe(EngineContext& context, const std::vector<TensorView>& inputs) {
  std::vector<Seen> seen;
  const Status ran = context.run_observed(inputs, [&](const InnerValue& value) {
    const bool has_memory = value.value.buffer.data != nullptr;
    const bool is_real = kind_of(value.value.buffer.dtype) == DTypeKind::kFloat;
    seen.push_back({value.name, value.module, value.position, value.value.shape, has_memory, value.value.buffer.device,
                    has_memory && is_real ? accord::testing::floats_of(value.value) : std::vector<float>()});
  });
  ACCORD_RETURN_IF_ERROR(ran);
  return seen;
}

class DeviceObserving : public accord::testing::OnAnyDevice<DeviceModels> {
 protected:
  static void expect_equal_values(const std::vector<Seen>& got, const std::vector<Seen>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    std::size_t compared = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(expected[i].name);
      EXPECT_EQ(got[i].name, expected[i].name);
      EXPECT_EQ(got[i].module, expected[i].module);
      EXPECT_EQ(got[i].position, expected[i].position);
      EXPECT_EQ(got[i].shape, expected[i].shape);
      EXPECT_EQ(got[i].has_memory, expected[i].has_memory);
      EXPECT_EQ(got[i].device, Device());
      expect_near(got[i].values, expected[i].values, 2e-4F);
      compared += expected[i].values.size();
    }
    EXPECT_GT(compared, 200U);
  }
};

std::vector<HostTensor> encoder_inputs() { return {whole_numbers({2, 5}, some_ids(2 * 5))}; }

std::vector<HostTensor> decoder_inputs() {
  std::vector<std::int64_t> ids, positions;
  for (std::int64_t i = 0; i < 21; ++i) {
    ids.push_back(i * 7 % TinyDecoder::kVocabulary);
    positions.push_back(i);
  }
  return {whole_numbers({21}, ids), whole_numbers({21}, positions), whole_numbers({2}, {3, 20})};
}

TEST_P(DeviceObserving, every_value_matches_the_cpu_and_the_last_one_the_model) {
  for (const std::string model : {"encoder", "decoder"}) {
    SCOPED_TRACE(model);
    std::vector<std::vector<Seen>> seen;
    for (const Device device : {Device(), kGpu}) {
      Result<Engine> engine = Engine::load(path(model), {}, {.device = device});
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      ASSERT_TRUE(engine->bind().ok());
      Result<EngineContext> context = engine->create_context();
      std::vector<HostTensor> inputs = model == "encoder" ? encoder_inputs() : decoder_inputs();
      Result<std::vector<Seen>> values = observe(*context, views_of(inputs));
      ASSERT_TRUE(values.ok()) << values.status().to_string();
      seen.push_back(*std::move(values));
    }
    expect_equal_values(seen[1], seen[0]);
    if (model == "decoder") continue;
    const std::vector<double> exact = TinyEncoder(4).reference(some_ids(2 * 5), 5);
    const auto last = std::find_if(seen[1].rbegin(), seen[1].rend(), [](const Seen& one) { return one.has_memory; });
    expect_near(last->values, std::vector<float>(exact.begin(), exact.end()), 1e-4F);
  }
}

TEST_F(DeviceModels, observers_see_whole_values_even_where_ranks_hold_parts) {
  using ByName = std::map<std::string, std::vector<float>>;
  ByName expected;
  for (const auto& [device, size] : {std::pair{Device(), 1}, std::pair{kGpu, 2}, std::pair{kGpu, 4}}) {
    SCOPED_TRACE(to_string(device) + " on " + std::to_string(size));
    on_ranks("encoder", size, {.device = device}, [&, is_cpu = device == Device()](Engine& engine, Rank) {
      Result<EngineContext> context = engine.create_context();
      std::vector<HostTensor> inputs = encoder_inputs();
      const Result<std::vector<Seen>> seen = observe(*context, views_of(inputs));
      ASSERT_TRUE(seen.ok()) << seen.status().to_string();
      ByName by_name;
      for (const Seen& value : *seen)
        if (!value.values.empty()) by_name[value.name] = value.values;
      if (is_cpu) expected = by_name;
      std::size_t compared = 0;
      for (const auto& [name, values] : by_name) {
        if (!expected.contains(name)) continue;  // fused on fewer ranks
        SCOPED_TRACE(name);
        expect_near(values, expected.at(name), 2e-4F);
        compared += 1;
      }
      EXPECT_GT(compared, 5U);
    });
  }
}

TEST_P(DeviceObserving, strided_values_are_reported_contiguously) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"3", "8"}));
  const ValueId weight = writer.parameter("w", shape_of({"8"}));
  const ValueId sum = writer.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(weight)}}, shape_of({"3", "8"}));
  const ValueId slice = writer.node(
      "aten.slice.Tensor",
      {{"self", of(sum)}, {"dim", number(1)}, {"start", number(1)}, {"end", number(8)}, {"step", number(3)}},
      shape_of({"3", "3"}));
  writer.output(
      writer.node("aten.permute.default", {{"self", of(slice)}, {"dims", numbers({"1", "0"})}}, shape_of({"3", "3"})));
  const std::vector<float> given = accord::testing::some_numbers(24), added = accord::testing::some_numbers(8, 2);
  write_package(path("slice"), writer.graph(), {{"w", added}}, {});
  Result<Engine> engine = Engine::load(path("slice"), {}, {.device = kGpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  std::vector<HostTensor> inputs = {HostTensor(DType::kFloat32, {3, 8}, given)};
  const Result<std::vector<Seen>> seen = observe(*context, views_of(inputs));
  ASSERT_TRUE(seen.ok()) << seen.status().to_string();
  ASSERT_EQ(seen->size(), 3U);
  std::vector<float> sliced(9), permuted(9);
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t i = 0; i < 3; ++i)
      permuted[3 * i + row] = sliced[3 * row + i] = given[8 * row + 3 * i + 1] + added[3 * i + 1];
  }
  EXPECT_EQ((*seen)[1].values, sliced);
  EXPECT_EQ((*seen)[2].values, permuted);
}

TEST_P(DeviceObserving, ids_out_of_range_are_reported_and_runs_continue) {
  Result<Engine> engine = Engine::load(path("encoder"), {}, {.device = kGpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  std::vector<HostTensor> good = {whole_numbers({1, 3}, {0, 5, 10})}, bad = {whole_numbers({1, 3}, {0, 11, 10})};
  const std::vector<double> exact = TinyEncoder(4).reference({0, 5, 10}, 3);
  for (int run = 0; run < 3; ++run) {
    const Status failure = observe(*context, views_of(bad)).status();
    EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(failure.message(), HasSubstr("id 11 at position 1 is outside [0, 11)"));
    ASSERT_TRUE(observe(*context, views_of(good)).ok());
    const Result<std::vector<TensorView>> outputs = context->run(views_of(good));
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    expect_near(accord::testing::floats_of((*outputs)[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
  }
}

// The program of an observed run is freed at its end, with its constants, and a device whose memory is freed waits
// for all of its kernels.
TEST_F(DeviceModels, a_rank_can_run_while_another_finishes_an_observed_run) {
  const SymbolicShape wide = shape_of({"3", "16"}), rows = shape_of({"3", "8"});
  GraphWriter writer;
  const ValueId x = writer.input("x", rows);
  const ValueId up = writer.parameter("up", shape_of({"16", "8"}));
  const ValueId down = writer.parameter("down", shape_of({"8", "16"}));
  const ValueId inner = writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(up)}}, wide);
  const ValueId sum = writer.node("aten.linear.default", {{"input", of(inner)}, {"weight", of(down)}}, rows);
  const ValueId places =
      writer.node("aten.arange.start_step", {{"start", number(0)}, {"end", number(8)}}, shape_of({"8"}));
  writer.output(writer.node("aten.add.Tensor", {{"self", of(sum)}, {"other", of(places)}}, rows));
  const std::vector<float> weight = accord::testing::some_numbers(16 * 8);
  write_package(path("sum"), writer.graph(), {{"up", weight}, {"down", weight}},
                {{"up", {"tp", 0, 8}}, {"down", {"tp", 1, 8}}});
  HostRuntime& runtime = HostRuntime::instance();
  runtime.set_release_waits(true);
  std::atomic<int> runs_begun = 0;
  accord::testing::run_thread_ranks(2, {.timeout = std::chrono::seconds(20)}, [&](const Communicator& comm) {
    Result<Engine> engine = Engine::load_and_bind(path("sum"), {{"tp", comm}}, {.device = kGpu});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    Result<EngineContext> context = engine->create_context();
    std::vector<HostTensor> inputs = {HostTensor(DType::kFloat32, {3, 8}, accord::testing::some_numbers(24))};
    ASSERT_TRUE(context->run(views_of(inputs)).ok());
    const Status seen = context->run_observed(views_of(inputs), [&](const InnerValue& value) {
      if (value.module != "layer3" || comm.rank() == 0) return;
      while (runs_begun == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // by then the other rank's kernels would run
    });
    ++runs_begun;
    ASSERT_TRUE(seen.ok()) << seen.to_string();
    const Status again = context->run(views_of(inputs)).status();
    EXPECT_TRUE(again.ok()) << again.to_string();
  });
  runtime.set_release_waits(false);
}

TEST_F(DeviceModels, observers_of_stages_see_the_values_of_each_and_all_report_a_bad_id) {
  accord::testing::run_thread_ranks(2, {.timeout = std::chrono::seconds(60)}, [&](const Communicator& comm) {
    const LoadOptions options{.device = {DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())}};
    Result<Engine> engine = Engine::load_and_bind(path("encoder"), {{"pp", comm}}, options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    Result<EngineContext> context = engine->create_context();
    std::vector<HostTensor> bad = {whole_numbers({1, 3}, {0, 11, 10})}, good = encoder_inputs();
    EXPECT_THAT(observe(*context, views_of(bad)).status().message(), HasSubstr("id 11 at position 1"));
    const Result<std::vector<Seen>> seen = observe(*context, views_of(good));
    ASSERT_TRUE(seen.ok()) << seen.status().to_string();
    EXPECT_GT(std::count_if(seen->begin(), seen->end(), [](const Seen& value) { return value.has_memory; }), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceObserving, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceObserving, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
