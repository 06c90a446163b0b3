// Observing an engine: a rank that cannot do it notifies the others, and a trace may be requested on any thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "accord/engine.hpp"
#include "ranks/process_ranks.hpp"
#include "ranks/thread_ranks.hpp"
#include "unit/engine/package/small_packages.hpp"

namespace accord {
namespace {

using engine::some_ids;
using engine::TinyEncoder;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Observing : public ::testing::Test {
 protected:
  void SetUp() override { model_.write(path_); }

  static TensorView view(std::vector<std::int64_t>& ids, DType dtype = DType::kInt64) {
    return {{ids.data(), ids.size(), dtype, {}}, {1, static_cast<std::int64_t>(ids.size())}};
  }

  /// Returns the result of run_observed() on each of two ranks if rank 1 first does `spoil`.
  std::vector<Status> observed(const std::function<void(TensorView&)>& spoil) const {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    std::vector<Status> statuses(2);
    testing::run_thread_ranks(2, options, [&](Communicator comm) {
      const Rank rank = comm.rank();
      Result<Engine> engine = Engine::load_and_bind(path_ + std::to_string(rank), {{"tp", comm}});
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      Result<EngineContext> context = engine->create_context();
      std::vector<std::int64_t> ids = some_ids(3);
      TensorView input = view(ids);
      if (rank == 1) spoil(input);
      std::size_t values = 0;
      const Status status = context->run_observed({&input, 1}, [&](const InnerValue&) { ++values; });
      statuses[static_cast<std::size_t>(rank)] = status;
      EXPECT_EQ(values > 0, status.ok());
      const TensorView right = view(ids);
      EXPECT_TRUE(context->run({&right, 1}).ok());  // the group still works
    });
    return statuses;
  }

  const testing::TemporaryDirectory directory_;
  const TinyEncoder model_{4};
  const std::string path_ = directory_.path() + "/model.accord";
};

TEST_F(Observing, fails_on_all_ranks_if_one_cannot) {
  for (const Rank rank : {0, 1}) model_.write(path_ + std::to_string(rank));
  for (const Status& status : observed([](TensorView&) {})) EXPECT_TRUE(status.ok()) << status.to_string();
  std::vector<Status> statuses = observed([](TensorView& input) { input.buffer.dtype = DType::kFloat64; });
  EXPECT_EQ(statuses[0].code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1 of group \"tp\" could not get ready"));
  EXPECT_THAT(statuses[1].message(), HasSubstr("expected int64, got float64"));
  statuses = observed([&](TensorView&) { std::filesystem::remove_all(path_ + "1"); });
  EXPECT_EQ(statuses[0].code(), StatusCode::kNotFound);
  EXPECT_EQ(statuses[0].ranks(), std::vector<Rank>{1});
}

TEST_F(Observing, a_trace_and_a_profile_may_be_requested_during_runs) {
  Result<Engine> engine = Engine::load_and_bind(path_, {});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  Result<EngineContext> context = engine->create_context();
  std::atomic<bool> done{false};
  std::thread requester([&] {
    for (int i = 0; !done; ++i) {
      context->set_profiling(i % 2 == 0 ? Profiling::kTrace : Profiling::kOn);
      const Status status = context->trace().status();
      EXPECT_THAT(status.code(), AnyOf(StatusCode::kOk, StatusCode::kWrongState)) << status.to_string();
      for (const OpTime& time : context->profile()) EXPECT_GT(time.calls, 0U);
    }
  });
  std::vector<std::int64_t> ids = some_ids(3);
  const TensorView input = view(ids);
  for (int ran = 0; ran < 300;) {
    const Status status = context->run({&input, 1}).status();
    EXPECT_THAT(status.code(), AnyOf(StatusCode::kOk, StatusCode::kWrongState)) << status.to_string();
    ran += status.ok() ? 1 : 0;
  }
  done = true;
  requester.join();
  context->set_profiling(Profiling::kTrace);
  ASSERT_TRUE(context->run({&input, 1}).ok());
  EXPECT_THAT(*context->trace(), HasSubstr("\"run 1\""));
}

}  // namespace
}  // namespace accord
