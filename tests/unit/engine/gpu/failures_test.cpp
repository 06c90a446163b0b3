// Failures of engines on devices are reported with their place and do not affect the next run.
#include <gmock/gmock.h>

#include <barrier>
#include <thread>

#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::floats_of;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(DeviceModels, a_bad_id_is_reported_with_its_position_and_the_next_run_succeeds) {
  Result<Engine> engine = Engine::load(path("encoder"), {}, {.device = kGpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  std::vector<HostTensor> good = {whole_numbers({1, 3}, {0, 5, 10})}, bad = {whole_numbers({1, 3}, {0, 11, 10})};
  const auto numbers_of = [&] { return floats_of(context->run(views_of(good)).value()[0]); };
  const std::vector<float> before = numbers_of();
  const Status status = context->run(views_of(bad)).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("model.py:0"), HasSubstr("id 11 at position 1 is outside [0, 11)")));
  EXPECT_EQ(numbers_of(), before);
}

TEST_F(DeviceModels, options_of_the_cpu_and_ops_without_a_kernel_are_rejected_by_name) {
  const auto refusal = [&](LoadOptions options) {
    options.device = kGpu;
    const Status status = Engine::load(path("encoder"), {}, options).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    return status.message();
  };
  EXPECT_THAT(refusal({.activation_dtype = DType::kInt8}), HasSubstr("activation_dtype"));
  EXPECT_EQ(Engine::load(path("encoder"), {{"dp", {0, 2}}}, {.device = kGpu}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(Engine::load(path("encoder"), {}, {.device = {DeviceType::kCuda, 9}}).status().code(),
            StatusCode::kInvalidArgument);

  GraphWriter writer;
  const SymbolicShape ones = shape_of({"1", "1", "1", "1", "1"});
  const ValueId x = writer.input("x", ones), ids = writer.input("ids", shape_of({"3"}), DType::kInt64);
  writer.output(writer.node("aten.index.Tensor",
                            {{"self", of(x)}, {"indices", std::vector<ValueRef>(5, ValueRef{ids})}}, shape_of({"3"})));
  const Status status =
      Engine::assemble({.name = "picks", .graph = to_json(writer.graph()), .weights = {}, .sizes = {}}, {},
                       {.device = kGpu})
          .status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("aten.index.Tensor"), HasSubstr("model.py:0"), HasSubstr("no kernel for")));
}

TEST_F(DeviceModels, a_gpu_with_too_little_shared_memory_for_the_kernels_is_refused) {
  HostRuntime::instance().set_max_shared_bytes(std::size_t{99} << 10);
  const Status status = Engine::load(path("encoder"), {}, {.device = kGpu}).status();
  HostRuntime::instance().set_max_shared_bytes(HostRuntime::kMaxSharedBytes);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("99 KiB of shared memory"), HasSubstr("need 160 KiB")));
}

TEST_F(DeviceModels, running_out_of_device_memory_is_an_error_that_names_the_purpose) {
  HostRuntime::instance().fail_next("allocate", Status(StatusCode::kResourceExhausted, "cudaMalloc failed"));
  const Status status = Engine::load(path("encoder"), {}, {.device = kGpu}).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("tensor \""), HasSubstr("cudaMalloc failed")));
}

TEST_F(DeviceModels, after_a_failure_of_any_runtime_call_the_next_run_is_correct) {
  Result<Engine> engine = Engine::load(path("encoder"), {}, {.device = kGpu, .outputs = DeviceType::kCpu});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  std::vector<HostTensor> inputs = {whole_numbers({1, 3}, {0, 5, 10})};
  const std::vector<double> exact = TinyEncoder(4).reference({0, 5, 10}, 3);
  for (const char* const call :
       {"create_stream", "allocate", "allocate_host", "copy", "fill", "launch", "synchronize", "begin_capture"}) {
    SCOPED_TRACE(call);
    Result<EngineContext> context = engine->create_context();
    ASSERT_TRUE(context.ok());
    const bool of_graphs = std::string_view(call).find("capture") != std::string_view::npos;
    if (of_graphs) {
      ASSERT_TRUE(context->run(views_of(inputs)).ok());
    }
    HostRuntime::instance().fail_next(call, Status(StatusCode::kInternal, "the device failed"));
    const Status status = context->run(views_of(inputs)).status();
    // Steps that cannot be captured run directly.
    EXPECT_EQ(status.ok(), of_graphs) << status.to_string();
    if (!of_graphs) {
      EXPECT_THAT(status.message(), HasSubstr("the device failed"));
    }
    for (int run = 0; run < 2; ++run) {
      const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
      ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
      expect_near(floats_of((*outputs)[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
    }
  }
}

TEST_F(DeviceModels, ranks_of_one_process_do_not_wait_for_each_other_when_memory_grows) {
  HostRuntime& runtime = HostRuntime::instance();
  runtime.set_release_waits(true);
  std::barrier between(2);
  accord::testing::run_thread_ranks(2, {.timeout = std::chrono::seconds(20)}, [&](const Communicator& comm) {
    Result<Engine> engine = Engine::load_and_bind(path("encoder"), {{"tp", comm}}, {.device = kGpu});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    Result<EngineContext> context = engine->create_context();
    for (const std::int64_t length : {2, 4, 8, 16}) {
      std::vector<HostTensor> inputs = {whole_numbers({1, length}, std::vector<std::int64_t>(length, 5))};
      const std::size_t before = runtime.bytes_on(kGpu);
      between.arrive_and_wait();
      // The other rank has its memory by then, and would compute if it did not wait.
      while (comm.rank() == 1 && runtime.bytes_on(kGpu) <= before) std::this_thread::yield();
      const Status status = context->run(views_of(inputs)).status();
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  });
  runtime.set_release_waits(false);
}

TEST_F(DeviceModels, graphs_of_ranks_on_one_device_do_not_wait_for_each_other_when_they_start) {
  HostRuntime& runtime = HostRuntime::instance();
  runtime.set_first_launches_wait(true);
  accord::testing::run_thread_ranks(2, {.timeout = std::chrono::seconds(20)}, [&](const Communicator& comm) {
    Result<Engine> engine = Engine::load_and_bind(path("encoder"), {{"tp", comm}}, {.device = kGpu});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    Result<EngineContext> context = engine->create_context();
    for (int run = 0; run < 4; ++run) {
      std::vector<HostTensor> inputs = {whole_numbers({1, 4}, std::vector<std::int64_t>(4, 5))};
      const Status status = context->run(views_of(inputs)).status();
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  });
  runtime.set_first_launches_wait(false);
}

TEST_F(DeviceModels, a_rank_that_closed_ends_the_run_of_the_others) {
  on_ranks("encoder", 2, {.device = kGpu}, [&](Engine& engine, Rank rank) {
    Result<EngineContext> context = engine.create_context();
    std::vector<HostTensor> inputs = {whole_numbers({1, 3}, {0, 5, 10})};
    ASSERT_TRUE(context->run(views_of(inputs)).ok());
    if (rank == 1) return;  // closes its communicator
    const Status status = context->run(views_of(inputs)).status();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
  });
}

}  // namespace
}  // namespace accord::engine
