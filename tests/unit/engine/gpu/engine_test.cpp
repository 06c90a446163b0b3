// Engines on devices: whole models on one rank and on several, decoding over the paged cache, graphs, new weights.
#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <numeric>
#include <thread>
#include <utility>

#include "device/host_blas.hpp"
#include "unit/engine/gpu/decoder_steps.hpp"
#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::floats_of;
using accord::testing::HostBlas;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using ::testing::HasSubstr;

TEST_F(DeviceModels, an_encoder_matches_the_model_on_any_number_of_ranks) {
  const std::vector<std::int64_t> ids = some_ids(2 * 5);
  const TinyEncoder model(4);
  const std::vector<double> exact = model.reference(ids, 5);
  const std::vector<float> expected(exact.begin(), exact.end());
  for (const int size : {1, 2, 4}) {
    SCOPED_TRACE(size);
    on_ranks("encoder", size, {.device = kGpu}, [&](Engine& engine, Rank rank) {
      Result<EngineContext> context = engine.create_context();
      ASSERT_TRUE(context.ok());
      std::vector<HostTensor> inputs = {whole_numbers({2, 5}, ids)};
      for (int run = 0; run < 3; ++run) {  // directly, captured, as a graph
        const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
        ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
        EXPECT_EQ((*outputs)[0].buffer.device, (Device{DeviceType::kCuda, static_cast<std::int16_t>(rank)}));
        expect_near(floats_of((*outputs)[0]), expected, 1e-4F);
      }
    });
  }
}

TEST_F(DeviceModels, the_logits_of_a_decoder_match_the_cpu_on_one_rank_and_two) {
  for (const DType cache : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<float> expected;
    on_ranks("decoder", 1, {}, [&](Engine& engine, Rank) { expected = run_steps(engine, cache); });
    ASSERT_EQ(expected.size(), 9 * TinyDecoder::kVocabulary);
    for (const int size : {1, 2}) {
      SCOPED_TRACE(size);
      on_ranks("decoder", size, {.device = kGpu},
               [&](Engine& engine, Rank) { expect_near(run_steps(engine, cache), expected, 2e-4F); });
    }
  }
}

TEST_F(DeviceModels, a_sum_over_the_ranks_and_the_norm_of_its_few_rows_are_one_kernel) {
  const auto launched = [] { return HostRuntime::instance().launches("run_plan_norm_float32"); };
  const int before = launched();
  on_ranks("decoder", 2, {.device = kGpu}, [&](Engine& engine, Rank) { (void)run_steps(engine, DType::kFloat32); });
  // Four sums per step on two ranks: in the first step; not in the second one with its 21 rows; and in two of three
  // equal steps, of which the last is a graph.
  EXPECT_EQ(launched() - before, 2 * 4 * 3);
}

/// On one rank.
class DeviceModelsAlone : public accord::testing::OnAnyDevice<DeviceModels> {};

TEST_P(DeviceModelsAlone, the_logits_of_a_decoder_match_the_cpu) {
  for (const DType cache : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    SCOPED_TRACE(to_string(cache));
    std::vector<std::vector<float>> logits;
    for (const Device device : {Device(), kGpu}) {
      Result<Engine> engine = Engine::load(path("decoder"), {}, {.device = device});
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      ASSERT_TRUE(engine->bind().ok());
      logits.push_back(run_steps(*engine, cache));
    }
    ASSERT_EQ(logits[0].size(), 9 * TinyDecoder::kVocabulary);
    expect_near(logits[1], logits[0], 2e-4F);
  }
}

TEST_P(DeviceModelsAlone, a_decoder_of_bfloat16_stays_within_its_rounding) {
  const DecoderParts decoder(DType::kBFloat16);
  std::vector<std::vector<float>> logits;
  for (const Device device : {Device(), kGpu}) {
    Result<Engine> engine = Engine::assemble(decoder.parts, {}, {.device = device});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ASSERT_TRUE(engine->bind().ok());
    logits.push_back(run_steps(*engine, DType::kBFloat16));
  }
  expect_near(logits[1], logits[0], 0.06F);
}

TEST_P(DeviceModelsAlone, a_run_without_sequences_is_one_sequence) {
  std::vector<std::vector<float>> logits;
  for (const Device device : {Device(), kGpu}) {
    Result<Engine> engine = Engine::load(path("decoder"), {}, {.device = device});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ASSERT_TRUE(engine->bind().ok());
    Result<EngineContext> context = engine->create_context();
    std::vector<HostTensor> inputs = {whole_numbers({40}, std::vector<std::int64_t>(40, 3)),
                                      whole_numbers({40},
                                                    [] {
                                                      std::vector<std::int64_t> positions(40);
                                                      std::iota(positions.begin(), positions.end(), 0);
                                                      return positions;
                                                    }()),
                                      whole_numbers({2}, {0, 39})};
    const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    logits.push_back(floats_of((*outputs)[0]));
  }
  expect_near(logits[1], logits[0], 2e-4F);
}

// Runs of the same shape share a program, whose graph contains the addresses of a cache.
TEST_P(DeviceModelsAlone, runs_with_and_without_sequences_alternate_with_separate_caches) {
  std::vector<std::vector<float>> logits;
  for (const Device device : {Device(), kGpu}) {
    Result<Engine> engine = Engine::load(path("decoder"), {}, {.device = device});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ASSERT_TRUE(engine->bind().ok());
    Result<EngineContext> context = engine->create_context();
    ASSERT_TRUE(context->create_cache({.blocks = 8}).ok());
    static const std::vector<std::int32_t> blocks = {7};
    std::vector<float> all;
    std::int64_t so_far = 0;
    for (const bool in_sequence : {true, true, true, false, false, true, true, false, true}) {
      const std::int64_t first = in_sequence ? so_far : 0;
      std::vector<HostTensor> inputs = {whole_numbers({2}, {first % 5 + 1, 4}), whole_numbers({2}, {first, first + 1}),
                                        whole_numbers({1}, {1})};
      const std::vector<SequenceRows> sequence = {{2, so_far, blocks}};
      const Result<std::vector<TensorView>> outputs =
          in_sequence ? context->run(views_of(inputs), sequence) : context->run(views_of(inputs));
      ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
      if (in_sequence) so_far += 2;
      for (const float value : floats_of((*outputs)[0])) all.push_back(value);
    }
    logits.push_back(all);
  }
  expect_near(logits[1], logits[0], 2e-4F);
}

TEST_P(DeviceModelsAlone, many_rows_of_a_prompt_are_computed_in_tiles) {
  std::vector<std::vector<float>> logits;
  for (const Device device : {Device(), kGpu}) {
    Result<Engine> engine = Engine::load(path("decoder"), {}, {.device = device});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ASSERT_TRUE(engine->bind().ok());
    Result<EngineContext> context = engine->create_context();
    ASSERT_TRUE(context->create_cache({.blocks = 8}).ok());
    DecoderStep step;
    static const std::vector<std::int32_t> one = {7, 2}, other = {4, 1, 6};
    for (const auto& [count, blocks] : {std::pair{29, &one}, std::pair{35, &other}}) {
      for (int i = 0; i < count; ++i) {
        step.ids.push_back(i * 5 % 23);
        step.positions.push_back(i);
      }
      step.sequences.push_back({count, 0, *blocks});
    }
    std::vector<HostTensor> inputs = {whole_numbers({64}, step.ids), whole_numbers({64}, step.positions),
                                      whole_numbers({3}, {0, 28, 63})};
    const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs), step.sequences);
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    logits.push_back(floats_of((*outputs)[0]));
  }
  expect_near(logits[1], logits[0], 2e-4F);
}

TEST_P(DeviceModelsAlone, outputs_are_copied_to_the_cpu_on_request) {
  Result<Engine> engine = Engine::load(path("encoder"), {}, {.device = kGpu, .outputs = DeviceType::kCpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  std::vector<HostTensor> inputs = {whole_numbers({1, 3}, {0, 5, 10})};
  const std::vector<TensorView> outputs = context->run(views_of(inputs)).value();
  EXPECT_EQ(outputs[0].buffer.device, Device());
  const std::vector<double> exact = TinyEncoder(4).reference({0, 5, 10}, 3);
  expect_near(floats_of(outputs[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
}

TEST_F(DeviceModels, inputs_may_be_on_the_engines_device_but_on_no_other) {
  Result<Engine> engine = Engine::load(path("encoder"), {}, {.device = kGpu, .outputs = DeviceType::kCpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  const std::vector<std::int64_t> ids = {0, 5, 10};
  for (const std::int16_t index : {std::int16_t{0}, std::int16_t{1}}) {
    const accord::testing::OnDevice on{HostRuntime::instance(), {DeviceType::kCuda, index}};
    const accord::testing::DeviceArray array(on, ids, DType::kInt64);
    const TensorView input{array.buffer(), {1, 3}};
    const Result<std::vector<TensorView>> outputs = context->run({&input, 1});
    EXPECT_EQ(outputs.ok(), index == 0) << outputs.status().to_string();
    if (!outputs.ok()) {
      EXPECT_THAT(outputs.status().message(), HasSubstr("on cuda:1, but the engine is on cuda:0"));
    }
  }
}

TEST_F(DeviceModels, runs_start_after_earlier_work_of_the_callers_stream) {
  Result<Engine> engine = Engine::load(path("encoder"), {}, {.device = kGpu, .outputs = DeviceType::kCpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  HostRuntime& runtime = HostRuntime::instance();
  const Stream others = runtime.create_stream(kGpu, false).value();
  for (const Stream stream : {Stream(), others}) {
    Result<EngineContext> context = engine->create_context();
    context->set_stream(stream);
    const accord::testing::OnDevice on{runtime, kGpu, stream};
    const std::vector<std::int64_t> ids = {0, 5, 10}, before = {1, 1, 1};
    const accord::testing::DeviceArray array(on, before, DType::kInt64);
    const TensorView input{array.buffer(), {1, 3}};
    accord::testing::BusyStream busy = runtime.make_stream_busy(stream, kGpu);
    ASSERT_TRUE(runtime.copy(array.buffer().data, ids.data(), sizeof(std::int64_t) * 3, kGpu, stream).ok());
    std::atomic<bool> returned = false;
    std::vector<float> found;
    const int launches = runtime.launches("engine_gather_rows");
    std::thread run([&] {
      const Result<std::vector<TensorView>> outputs = context->run({&input, 1});
      ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
      found = floats_of(outputs->front());
      returned = true;
    });
    // Once the run's kernels are in a stream, so is its copy of the ids.
    while (!returned && runtime.launches("engine_gather_rows") == launches) std::this_thread::yield();
    EXPECT_FALSE(returned) << "it did not wait";
    busy.release();
    run.join();
    const std::vector<double> exact = TinyEncoder(4).reference(ids, 3);
    expect_near(found, std::vector<float>(exact.begin(), exact.end()), 1e-4F);
  }
  EXPECT_TRUE(runtime.destroy_stream(kGpu, others).ok());
}

TEST_F(DeviceModels, kernels_apply_epilogues_that_the_library_does_not_support) {
  const std::vector<std::int64_t> ids = some_ids(2 * 16);
  const std::vector<double> exact = TinyEncoder(4).reference(ids, 16);
  HostBlas& blas = HostBlas::instance();
  blas.set_takes_epilogues(false);
  on_ranks("encoder", 1, {.device = kGpu}, [&](Engine& engine, Rank) {
    Result<EngineContext> context = engine.create_context();
    std::vector<HostTensor> inputs = {whole_numbers({2, 16}, ids)};
    const int products = blas.products();
    const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    EXPECT_GT(blas.products(), products);
    expect_near(floats_of((*outputs)[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
  });
  blas.set_takes_epilogues(true);
}

TEST_P(DeviceModelsAlone, new_weights_take_effect_and_graphs_of_the_old_ones_are_discarded) {
  TinyEncoder(4, 2).write(path("newer"));
  Result<Engine> engine = Engine::load(path("encoder"), {}, {.device = kGpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  std::vector<HostTensor> inputs = {whole_numbers({1, 3}, {0, 5, 10})};
  for (const unsigned seed : {1U, 2U}) {
    if (seed == 2) {
      ASSERT_TRUE(engine->load_weights(path("newer")).ok());
    }
    const std::vector<double> exact = TinyEncoder(4, seed).reference({0, 5, 10}, 3);
    for (int run = 0; run < 3; ++run) {
      const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
      ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
      expect_near(floats_of((*outputs)[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
    }
  }
}

TEST_F(DeviceModels, a_program_is_captured_at_its_second_run_and_again_when_the_arena_moves) {
  const auto ids_of = [](std::int64_t length) {
    return std::vector<HostTensor>{whole_numbers({1, length}, some_ids(length))};
  };
  for (const int size : {1, 2}) {
    SCOPED_TRACE(size);
    std::barrier together(size);
    on_ranks("encoder", size, {.device = kGpu}, [&](Engine& engine, Rank) {
      Result<EngineContext> context = engine.create_context();
      const auto graphs_after_run = [&](std::int64_t length) {
        std::vector<HostTensor> inputs = ids_of(length);
        const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
        EXPECT_TRUE(outputs.ok()) << outputs.status().to_string();
        const std::vector<double> exact = TinyEncoder(4).reference(some_ids(length), length);
        if (outputs.ok()) {
          expect_near(floats_of((*outputs)[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
        }
        together.arrive_and_wait();
        const std::size_t graphs = HostRuntime::instance().live().graphs;
        together.arrive_and_wait();
        return static_cast<int>(graphs) / size;
      };
      EXPECT_EQ(graphs_after_run(3), 0);
      EXPECT_EQ(graphs_after_run(3), 1);
      EXPECT_EQ(graphs_after_run(16), 1);  // the arena moves; a graph of the old one must not run
      EXPECT_EQ(graphs_after_run(3), 1);
      EXPECT_EQ(graphs_after_run(16), 2);
    });
  }
}

TEST_P(DeviceModelsAlone, a_profile_counts_the_ops_that_ran_on_the_device) {
  Result<Engine> engine = Engine::load(path("encoder"), {}, {.device = kGpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  context->set_profiling(Profiling::kOn);
  std::vector<HostTensor> inputs = {whole_numbers({1, 3}, {0, 5, 10})};
  ASSERT_TRUE(context->run(views_of(inputs)).ok());
  std::uint64_t lookups = 0;
  for (const OpTime& time : context->profile()) lookups += time.op == "aten.embedding.default" ? time.calls : 0;
  EXPECT_EQ(lookups, 1);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceModelsAlone, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceModelsAlone, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
