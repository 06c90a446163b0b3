// Pipelines of devices: each rank has some of the layers, and all ranks get the outputs.
#include <gmock/gmock.h>

#include <array>
#include <barrier>

#include "unit/engine/gpu/decoder_steps.hpp"
#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::floats_of;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using ::testing::HasSubstr;

LoadOptions on_device_of(const Communicator& comm) {
  return {.device = {DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())}};
}

TEST_F(DeviceModels, stages_match_the_model_on_all_ranks) {
  const std::vector<std::int64_t> ids = some_ids(2 * 5);
  const std::vector<double> exact = TinyEncoder(4).reference(ids, 5);
  for (const int size : {2, 3}) {
    SCOPED_TRACE(size);
    accord::testing::run_thread_ranks(size, {.timeout = std::chrono::seconds(60)}, [&](const Communicator& comm) {
      Result<Engine> engine = Engine::load_and_bind(path("encoder"), {{"pp", comm}}, on_device_of(comm));
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      Result<EngineContext> context = engine->create_context();
      std::vector<HostTensor> inputs = {whole_numbers({2, 5}, ids)};
      for (int run = 0; run < 3; ++run) {  // directly, captured, as a graph
        const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
        ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
        expect_near(floats_of((*outputs)[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
      }
    });
  }
}

TEST_F(DeviceModels, the_logits_of_a_decoder_in_stages_match_the_cpu_even_with_sharded_layers) {
  std::vector<float> expected;
  on_ranks("decoder", 1, {}, [&](Engine& engine, Rank) { expected = run_steps(engine, DType::kFloat32); });
  for (const int divided : {1, 2}) {
    SCOPED_TRACE(divided);
    accord::testing::run_thread_ranks(2 * divided, {.timeout = std::chrono::seconds(60)}, [&](Communicator comm) {
      Communicator stages = comm.split(comm.rank() % divided, comm.rank(), {.name = "pp"}).value().value();
      Communicator shards = comm.split(comm.rank() / divided, comm.rank(), {.name = "tp"}).value().value();
      Result<Engine> engine =
          Engine::load_and_bind(path("decoder"), {{"pp", stages}, {"tp", shards}}, on_device_of(comm));
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      expect_near(run_steps(*engine, DType::kFloat32), expected, 2e-4F);
    });
  }
}

// Only the first stage detects the bad id, after it has sent its result.
TEST_F(DeviceModels, an_error_in_one_stage_reaches_all_ranks_and_the_next_run_succeeds) {
  const std::vector<double> exact = TinyEncoder(4).reference({0, 5, 10}, 3);
  accord::testing::run_thread_ranks(2, {.timeout = std::chrono::seconds(60)}, [&](const Communicator& comm) {
    Result<Engine> engine = Engine::load_and_bind(path("encoder"), {{"pp", comm}}, on_device_of(comm));
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    Result<EngineContext> context = engine->create_context();
    std::vector<HostTensor> good = {whole_numbers({1, 3}, {0, 5, 10})}, bad = {whole_numbers({1, 3}, {0, 11, 10})};
    for (int run = 0; run < 3; ++run) {
      const Status status = context->run(views_of(bad)).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("id 11 at position 1 is outside [0, 11)"));
      if (comm.rank() == 1) {
        EXPECT_THAT(status.message(), HasSubstr("rank 0 of group \"pp\" failed in its run"));
      }
      const Result<std::vector<TensorView>> outputs = context->run(views_of(good));
      ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
      expect_near(floats_of((*outputs)[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
    }
  });
}

TEST_F(DeviceModels, a_stage_whose_device_fails_ends_the_run_of_the_others) {
  std::barrier together(2);
  std::array<Status, 2> statuses;
  accord::testing::run_thread_ranks(2, {.timeout = std::chrono::seconds(60)}, [&](const Communicator& comm) {
    Result<Engine> engine = Engine::load_and_bind(path("encoder"), {{"pp", comm}}, on_device_of(comm));
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    Result<EngineContext> context = engine->create_context();
    std::vector<HostTensor> inputs = {whole_numbers({1, 3}, {0, 5, 10})};
    ASSERT_TRUE(context->run(views_of(inputs)).ok());
    if (comm.rank() == 0) {  // for whichever rank arrives first
      HostRuntime::instance().fail_next("fill", Status(StatusCode::kInternal, "the device failed"));
    }
    together.arrive_and_wait();
    statuses[static_cast<std::size_t>(comm.rank())] = context->run(views_of(inputs)).status();
    together.arrive_and_wait();
  });
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_THAT(statuses[0].message() + statuses[1].message(), HasSubstr("the device failed"));
}

}  // namespace
}  // namespace accord::engine
