// Engines assembled from parts in memory: the options they accept, and that they have no package.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "accord/engine.hpp"
#include "ranks/process_ranks.hpp"
#include "unit/engine/package/small_packages.hpp"

namespace accord {
namespace {

using engine::of;
using engine::shape_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// y = tanh(x w) for `rows` rows of 64, with w of ones.
class AssembledEngines : public ::testing::Test {
 protected:
  EngineParts parts(const std::string& name = "parts") {
    engine::GraphWriter writer;
    writer.symbol("rows", 1, 1 << 20);
    const auto rows = shape_of({"rows", "64"});
    const auto x = writer.input("x", rows);
    const auto w = writer.parameter("w", shape_of({"64", "64"}));
    const auto y = writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(w)}}, rows);
    writer.output(writer.node("aten.tanh.default", {{"self", of(y)}}, rows));
    return {.name = name,
            .graph = engine::to_json(writer.graph()),
            .weights = {{"w", {{ones_.data(), ones_.size(), DType::kFloat32, {}}, {64, 64}}}},
            .sizes = {{"rows", 100}}};
  }

  static constexpr std::uint64_t kWeights = 64 * 64 * 4;
  std::vector<float> ones_ = std::vector<float>(64 * 64, 1.0F);
};

TEST_F(AssembledEngines, keep_their_memory_limit) {
  const Status weights = Engine::assemble(parts(), {}, {.memory_limit = kWeights / 2}).status();
  EXPECT_EQ(weights.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(weights.message(), AllOf(HasSubstr("packed weights 16 KiB"), HasSubstr("the limit is 8 KiB")));
  const Status arena = Engine::assemble(parts(), {}, {.memory_limit = kWeights + 64}).status();
  EXPECT_EQ(arena.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(arena.message(), HasSubstr("an arena"));
  Result<Engine> engine = Engine::assemble(parts(), {}, {.memory_limit = kWeights + 256 * 1024});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  ASSERT_TRUE(engine->bind().ok());
  Result<EngineContext> context = engine->create_context();
  ASSERT_TRUE(context.ok()) << context.status().to_string();
  std::vector<float> x(1000 * 64, 0.5F);
  const auto run = [&](std::int64_t rows) {
    const TensorView input{{x.data(), static_cast<std::size_t>(rows) * 64, DType::kFloat32, {}}, {rows, 64}};
    return context->run({&input, 1}).status();
  };
  EXPECT_TRUE(run(100).ok());
  EXPECT_EQ(run(1000).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(run(100).ok());
}

TEST_F(AssembledEngines, reject_canonical_ranks) {
  const Status status = Engine::assemble(parts(), {}, {.canonical_ranks = 4}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("canonical_ranks"));
}

TEST_F(AssembledEngines, ignore_a_package_with_their_name) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path() + "/other.accord";
  engine::TinyEncoder(4).write(path);
  Result<Engine> engine = Engine::assemble(parts(path));
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  const Result<std::string> report = engine->report({{"rows", 3}});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(nlohmann::json::parse(*report).at("model").empty());
  ASSERT_TRUE(engine->bind().ok());
  std::vector<float> x(64, 0.5F);
  const TensorView input{{x.data(), x.size(), DType::kFloat32, {}}, {1, 64}};
  const Status observed = engine->create_context()->run_observed({&input, 1}, [](const InnerValue&) {});
  EXPECT_EQ(observed.code(), StatusCode::kUnsupported);
  EXPECT_THAT(observed.message(), HasSubstr("assembled from parts"));
}

}  // namespace
}  // namespace accord
