// Rows in two halves on devices: one half is summed over the ranks while the other one is computed.
#include <barrier>

#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::floats_of;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;

TEST_F(DeviceModels, rows_in_two_halves_match_the_model) {
  const std::vector<std::int64_t> ids = some_ids(4 * 16);
  const std::vector<double> exact = TinyEncoder(4).reference(ids, 16);
  const std::vector<float> expected(exact.begin(), exact.end());
  for (const int size : {1, 2, 4}) {
    SCOPED_TRACE(size);
    on_ranks("encoder", size, {.device = kGpu, .overlap_rows = 32}, [&](Engine& engine, Rank) {
      Result<EngineContext> context = engine.create_context();
      std::vector<HostTensor> inputs = {whole_numbers({4, 16}, ids)};
      for (int run = 0; run < 4; ++run) {  // directly, captured, as a graph twice
        const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
        ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
        expect_near(floats_of((*outputs)[0]), expected, 1e-4F);
      }
    });
  }
}

TEST_F(DeviceModels, rows_are_split_from_the_given_number_on) {
  const std::vector<std::int64_t> ids = some_ids(4 * 16);
  for (const std::int64_t least : {64, 65}) {
    on_ranks("encoder", 2, {.device = kGpu, .overlap_rows = least}, [&](Engine& engine, Rank) {
      Result<EngineContext> context = engine.create_context();
      context->set_profiling(Profiling::kOn);
      std::vector<HostTensor> inputs = {whole_numbers({4, 16}, ids)};
      ASSERT_TRUE(context->run(views_of(inputs)).ok());
      std::uint64_t calls = 0;
      for (const OpTime& time : context->profile()) calls += time.op.starts_with("accord.all_reduce") ? time.calls : 0;
      // Two sums, each one step with its norm; or several steps for each half.
      EXPECT_TRUE(least == 64 ? calls >= 2 * 2 * 3 : calls == 2) << calls;
    });
  }
}

// The first half's sum cannot be put into its stream, which is noticed where the engine waits for it. By then, the
// second half's sum has started.
TEST_F(DeviceModels, works_started_in_a_failed_capture_are_discarded) {
  const std::vector<std::int64_t> ids = some_ids(4 * 16);
  const std::vector<double> exact = TinyEncoder(4).reference(ids, 16);
  std::barrier together(2);
  // Outputs go to the CPU, so that a run starts without an event.
  const LoadOptions options{.device = kGpu, .outputs = DeviceType::kCpu, .overlap_rows = 32};
  on_ranks("encoder", 2, options, [&](Engine& engine, Rank rank) {
    Result<EngineContext> context = engine.create_context();
    std::vector<HostTensor> inputs = {whole_numbers({4, 16}, ids)};
    for (int run = 0; run < 4; ++run) {
      together.arrive_and_wait();
      if (run == 1 && rank == 0) {
        HostRuntime::instance().fail_next("record", Status(StatusCode::kInternal, "the device failed"));
      }
      together.arrive_and_wait();
      const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
      EXPECT_TRUE(outputs.ok()) << outputs.status().to_string();
      if (outputs.ok()) {
        expect_near(floats_of((*outputs)[0]), std::vector<float>(exact.begin(), exact.end()), 1e-4F);
      }
    }
  });
}

}  // namespace
}  // namespace accord::engine
