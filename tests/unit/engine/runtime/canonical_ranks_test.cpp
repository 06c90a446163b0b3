// Results that do not depend on how many ranks share an engine, for a package whose weights are stored by rows.
// tests/python/numerics/test_canonical_ranks.py covers weights that are stored as products read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "accord/engine.hpp"
#include "ranks/process_ranks.hpp"
#include "ranks/thread_ranks.hpp"
#include "unit/engine/package/small_packages.hpp"

namespace accord {
namespace {

using ::testing::Each;
using ::testing::Eq;

TEST(CanonicalRanks, are_bit_identical_at_every_size) {
  const engine::TinyEncoder model(8);
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path() + "/model.accord";
  model.write(path);
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(60);
  std::mutex mutex;
  std::vector<std::vector<float>> outputs;
  for (const int size : {1, 2, 4, 8}) {
    testing::run_thread_ranks(size, options, [&](Communicator comm) {
      Result<Engine> engine = Engine::load_and_bind(path, {{"tp", comm}}, {.canonical_ranks = 8});
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      Result<EngineContext> context = engine->create_context();
      std::vector<std::int64_t> ids = engine::some_ids(14);
      const TensorView input{{ids.data(), ids.size(), DType::kInt64, {}}, {2, 7}};
      const Result<std::vector<TensorView>> got = context->run({&input, 1});
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      const auto* values = static_cast<const float*>((*got)[0].buffer.data);
      const std::lock_guard lock(mutex);
      outputs.emplace_back(values, values + (*got)[0].buffer.count);
    });
  }
  ASSERT_EQ(outputs.size(), 15U);
  EXPECT_THAT(outputs, Each(Eq(outputs[0])));
  const std::vector<double> expected = model.reference(engine::some_ids(14), 7);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(outputs[0][i], expected[i], 2e-5);
}

}  // namespace
}  // namespace accord
