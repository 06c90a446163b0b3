// Whole engines from packages: numbers on any number of ranks, states, reports, and the results of wrong use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>

#include "accord/engine.hpp"
#include "ranks/process_ranks.hpp"
#include "ranks/thread_ranks.hpp"
#include "unit/engine/package/small_packages.hpp"

namespace accord {
namespace {

using engine::some_ids;
using engine::TinyEncoder;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;
using testing::run_thread_ranks;
using testing::TemporaryDirectory;

class Engines : public ::testing::Test {
 protected:
  std::string package(const TinyEncoder& model, const std::string& name = "model.accord") const {
    const std::string path = directory_.path() + "/" + name;
    model.write(path);
    return path;
  }

  static TensorView view(std::vector<std::int64_t>& ids, std::vector<std::int64_t> shape) {
    return {{ids.data(), ids.size(), DType::kInt64, {}}, std::move(shape)};
  }

  static CommunicatorOptions options() {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    return options;
  }

  static Result<std::vector<float>> run(EngineContext& context, std::int64_t batch, std::int64_t length) {
    std::vector<std::int64_t> ids = some_ids(batch * length);
    const TensorView input = view(ids, {batch, length});
    ACCORD_ASSIGN_OR_RETURN(const std::vector<TensorView> outputs, context.run({&input, 1}));
    const auto* values = static_cast<const float*>(outputs[0].buffer.data);
    return std::vector<float>(values, values + outputs[0].buffer.count);
  }

  /// Runs `body` on each rank and returns the statuses by rank.
  static std::vector<Status> on_ranks(int size, const std::function<Status(Communicator)>& body) {
    std::vector<Status> statuses(static_cast<std::size_t>(size));
    run_thread_ranks(size, options(), [&](Communicator comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      statuses[rank] = body(std::move(comm));
    });
    return statuses;
  }

  TemporaryDirectory directory_;
};

TEST_F(Engines, any_number_of_ranks_matches_the_model_bit_identically_on_each_rank) {
  for (const auto& [heads, sizes] : std::vector<std::pair<int, std::vector<int>>>{{12, {1, 2, 4}}, {9, {1, 2, 4}}}) {
    const TinyEncoder model(heads);
    const std::string path = package(model, std::to_string(heads) + ".accord");
    for (const int size : sizes) {
      SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(size) + " ranks");
      std::mutex mutex;
      std::vector<std::vector<float>> outputs;
      run_thread_ranks(size, options(), [&](Communicator comm) {
        Result<Engine> engine = Engine::load_and_bind(path, {{"tp", comm}});
        ASSERT_TRUE(engine.ok()) << engine.status().to_string();
        Result<EngineContext> context = engine->create_context();
        ASSERT_TRUE(context.ok());
        for (const auto& [batch, length] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {2, 7}, {4, 16}, {2, 7}}) {
          const Result<std::vector<float>> got = run(*context, batch, length);
          ASSERT_TRUE(got.ok()) << got.status().to_string();
          const std::vector<double> expected = model.reference(some_ids(batch * length), length);
          ASSERT_EQ(got->size(), expected.size());
          for (std::size_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR((*got)[i], expected[i], 2e-5) << "element " << i;
          if (length == 7) {
            const std::lock_guard lock(mutex);
            outputs.push_back(*got);
          }
        }
      });
      ASSERT_EQ(outputs.size(), static_cast<std::size_t>(2 * size));
      EXPECT_THAT(outputs, Each(Eq(outputs[0])));
    }
  }
}

TEST_F(Engines, threads_compute_the_same_model) {
  const TinyEncoder model(12);
  const std::string path = package(model);
  Result<Engine> engine = Engine::load_and_bind(path, {}, {.threads = 3});
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  Result<EngineContext> context = engine->create_context();
  const Result<std::vector<float>> got = run(*context, 4, 16);
  const std::vector<double> expected = model.reference(some_ids(64), 16);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR((*got)[i], expected[i], 2e-5);
}

TEST_F(Engines, only_the_shard_of_each_rank_is_read_and_reported) {
  const TinyEncoder model(9);
  const std::string path = package(model);
  std::uint64_t shards = 0;
  for (const Rank rank : {0, 1}) {
    const Result<Engine> engine = Engine::load(path, {{"tp", {rank, 2}}});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    const LoadReport& report = engine->load_report();
    EXPECT_EQ(report.replicated_bytes, model.replicated_bytes());
    EXPECT_EQ(report.weight_bytes_read, report.shard_bytes + report.replicated_bytes);
    EXPECT_NEAR(static_cast<double>(report.shard_bytes) / static_cast<double>(model.sharded_bytes()),
                rank == 0 ? 5.0 / 9 : 4.0 / 9, 1e-9);
    shards += report.shard_bytes;
  }
  EXPECT_EQ(shards, model.sharded_bytes());
}

TEST_F(Engines, inputs_and_outputs_are_described) {
  const Result<Engine> engine = Engine::load(package(TinyEncoder(4)));
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ(engine->inputs()[0].name, "ids");
  EXPECT_EQ(engine->inputs()[0].dtype, DType::kInt64);
  EXPECT_EQ(engine->inputs()[0].shape, (std::vector<std::string>{"b", "l"}));
  EXPECT_EQ(engine->outputs()[0].shape, (std::vector<std::string>{"b", "l", "16"}));
  EXPECT_EQ(engine->groups().at("tp").size, 1);
}

TEST_F(Engines, outputs_keep_the_names_of_the_package_whatever_the_passes_do) {
  engine::GraphWriter writer;
  const engine::SymbolicShape shape = engine::shape_of({"4"});
  const engine::ValueId weight = writer.parameter("w", shape);
  const engine::ValueId x = writer.input("x", shape);
  const engine::ValueId sum =
      writer.node("aten.add.Tensor", {{"self", engine::of(x)}, {"other", engine::of(weight)}}, shape);
  const engine::ValueId same = writer.node("aten.mul.Tensor", {{"self", engine::of(sum)}, {"other", 1.0}}, shape);
  const engine::ValueId once = writer.node("aten.gelu.default", {{"self", engine::of(sum)}}, shape);
  const engine::ValueId twice = writer.node("aten.gelu.default", {{"self", engine::of(sum)}}, shape);
  std::vector<std::string> names;
  for (const engine::ValueId output : {same, once, twice}) {
    writer.output(output);
    names.push_back(writer.graph().values[static_cast<std::size_t>(output)].name);
  }
  const std::string path = directory_.path() + "/names.accord";
  engine::write_package(path, writer.graph(), {{"w", {1, 2, 3, 4}}}, {});
  const Result<Engine> engine = Engine::load(path);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  std::vector<std::string> got;
  for (const TensorInfo& output : engine->outputs()) got.push_back(output.name);
  EXPECT_EQ(got, names);
}

TEST_F(Engines, an_engine_runs_only_between_bind_and_close) {
  Result<Engine> engine = Engine::load(package(TinyEncoder(4)));
  ASSERT_TRUE(engine.ok());
  Result<EngineContext> context = engine->create_context();
  ASSERT_TRUE(context.ok());
  EXPECT_EQ(engine->state(), EngineState::kUnbound);
  Status status = run(*context, 1, 3).status();
  EXPECT_EQ(status.code(), StatusCode::kWrongState);
  EXPECT_THAT(status.message(), HasSubstr("bind the engine before running it"));
  ASSERT_TRUE(engine->bind().ok());
  EXPECT_EQ(engine->state(), EngineState::kBound);
  EXPECT_TRUE(run(*context, 1, 3).ok());
  EXPECT_EQ(engine->state(), EngineState::kBound);
  ASSERT_TRUE(engine->bind().ok());
  EXPECT_EQ(engine->state(), EngineState::kBound);
  ASSERT_TRUE(engine->unbind().ok());
  EXPECT_EQ(engine->state(), EngineState::kUnbound);
  EXPECT_EQ(run(*context, 1, 3).status().code(), StatusCode::kWrongState);
  engine->close();
  engine->close();
  EXPECT_EQ(run(*context, 1, 3).status().code(), StatusCode::kWrongState);
  EXPECT_EQ(engine->bind().code(), StatusCode::kWrongState);
  EXPECT_EQ(engine->create_context().status().code(), StatusCode::kWrongState);
}

TEST_F(Engines, a_context_outlives_its_engine_and_its_communicator) {
  const TinyEncoder model(4);
  const std::string path = package(model);
  run_thread_ranks(2, options(), [&](Communicator comm) {
    std::optional<EngineContext> context;
    {
      Result<Engine> engine = Engine::load_and_bind(path, {{"tp", comm}});
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      context = *engine->create_context();
    }
    { const Communicator released = std::move(comm); }
    EXPECT_TRUE(run(*context, 2, 5).ok());
  });
}

TEST_F(Engines, several_contexts_share_the_weights) {
  const TinyEncoder model(4);
  Result<Engine> engine = Engine::load_and_bind(package(model), {});
  ASSERT_TRUE(engine.ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      Result<EngineContext> context = engine->create_context();
      for (int round = 0; round < 20; ++round) {
        const Result<std::vector<float>> got = run(*context, 1 + i, 4);
        ASSERT_TRUE(got.ok()) << got.status().to_string();
        EXPECT_NEAR((*got)[5], model.reference(some_ids(4), 4)[5], 2e-5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine->state(), EngineState::kBound);
}

TEST_F(Engines, the_arena_grows_to_the_largest_shape_and_serves_the_smaller_ones) {
  Result<Engine> engine = Engine::load_and_bind(package(TinyEncoder(4)), {});
  Result<EngineContext> context = engine->create_context();
  ASSERT_TRUE(run(*context, 1, 2).ok());
  const std::size_t small = context->arena_bytes();
  ASSERT_TRUE(run(*context, 4, 16).ok());
  const std::size_t large = context->arena_bytes();
  EXPECT_LT(small, large);
  const std::vector<float> before = *run(*context, 1, 2);
  EXPECT_EQ(context->arena_bytes(), large);
  // More shapes than the cache of programs holds: each result is right, even if the program has to be prepared again.
  for (std::int64_t batch = 1; batch <= 4; ++batch) {
    for (std::int64_t length = 1; length <= 16; ++length) ASSERT_TRUE(run(*context, batch, length).ok());
  }
  EXPECT_EQ(*run(*context, 1, 2), before);
}

TEST_F(Engines, outputs_can_be_read_after_the_arena_grew) {
  Result<Engine> engine = Engine::load_and_bind(package(TinyEncoder(4)), {});
  // The arenas of several contexts are side by side, so that one that grows cannot cover its old place.
  std::vector<EngineContext> contexts;
  for (int i = 0; i < 3; ++i) contexts.push_back(*engine->create_context());
  std::vector<TensorView> seen;
  std::vector<std::int64_t> ids = some_ids(64);
  for (const std::int64_t length : {1, 4, 8, 16}) {
    for (EngineContext& context : contexts) {
      const TensorView input{{ids.data(), static_cast<std::size_t>(4 * length), DType::kInt64, {}}, {4, length}};
      const std::size_t before = context.arena_bytes();
      const Result<std::vector<TensorView>> outputs = context.run({&input, 1});
      ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
      EXPECT_GT(context.arena_bytes(), before);
      seen.push_back((*outputs)[0]);
    }
  }
  for (const TensorView& output : seen) {
    const auto* values = static_cast<const float*>(output.buffer.data);
    EXPECT_TRUE(std::isfinite(std::accumulate(values, values + output.buffer.count, 0.0F)));
  }
}

TEST_F(Engines, a_profile_lists_the_ops_that_ran) {
  Result<Engine> engine = Engine::load_and_bind(package(TinyEncoder(4)), {});
  Result<EngineContext> context = engine->create_context();
  ASSERT_TRUE(run(*context, 1, 2).ok());
  EXPECT_TRUE(context->profile().empty());
  context->set_profiling(Profiling::kOn);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(run(*context, 1, 2).ok());
  std::map<std::string, std::uint64_t> calls;
  for (const OpTime& time : context->profile()) calls[time.op] = time.calls;
  EXPECT_EQ(calls["accord.linears"], 3U);  // query, key and value
  EXPECT_EQ(calls["aten.linear.default"] + calls["accord.linear"], 9U);
  EXPECT_EQ(calls["accord.add_layer_norm"], 6U);
}

TEST_F(Engines, invalid_inputs_are_named) {
  Result<Engine> engine = Engine::load_and_bind(package(TinyEncoder(4)), {});
  Result<EngineContext> context = engine->create_context();
  std::vector<std::int64_t> ids = some_ids(6);
  const auto expect_refused = [&](std::vector<TensorView> inputs, const std::string& expected) {
    const Status status = context->run(inputs).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(expected));
  };
  expect_refused({}, "takes 1 inputs, but 0 were given");
  expect_refused({view(ids, {6})}, "expected 2 dimensions [b, l], got 1");
  expect_refused({view(ids, {2, 2})}, "its shape [2, 2] has 4 elements, but its buffer has 6");
  expect_refused({view(ids, {6, 1})}, "dimension 0 (\"b\") is 6, outside 1 to 4");
  expect_refused({view(ids, {0, 6})}, "elements");
  expect_refused({view(ids, {-2, -3})}, "is not valid");
  TensorView floats = view(ids, {2, 3});
  floats.buffer.dtype = DType::kFloat32;
  expect_refused({floats}, "expected int64, got float32");
  TensorView elsewhere = view(ids, {2, 3});
  elsewhere.buffer.device.type = DeviceType::kCuda;
  expect_refused({elsewhere}, "not CPU memory");
  ids[4] = 11;
  expect_refused({view(ids, {2, 3})}, "id 11 at position 4 is outside [0, 11)");
  ids[4] = 0;
  EXPECT_TRUE(context->run(std::vector<TensorView>{view(ids, {2, 3})}).ok());
}

TEST_F(Engines, bind_accepts_communicators_of_the_loaded_rank_and_size) {
  const std::string path = package(TinyEncoder(4));
  const std::vector<Status> statuses = on_ranks(2, [&](Communicator comm) -> Status {
    ACCORD_ASSIGN_OR_RETURN(Engine engine, Engine::load(path, {{"tp", {comm.rank(), 4}}}));
    return engine.bind({{"tp", comm}});
  });
  for (const Rank rank : {0, 1}) {
    const Status& status = statuses[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("loaded for rank " + std::to_string(rank) + " of 4"));
    EXPECT_THAT(status.message(), HasSubstr("is rank " + std::to_string(rank) + " of 2"));
  }
}

TEST_F(Engines, a_rank_with_the_wrong_communicator_fails_the_others_too) {
  const std::string path = package(TinyEncoder(4));
  const std::vector<Status> statuses = on_ranks(2, [&](Communicator comm) -> Status {
    ACCORD_ASSIGN_OR_RETURN(Engine engine, Engine::load(path, {{"tp", {0, 2}}}));
    return engine.bind({{"tp", comm}});
  });
  EXPECT_THAT(statuses[1].message(), HasSubstr("loaded for rank 0 of 2"));
  EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1 of group \"tp\" could not get ready"));
  EXPECT_EQ(statuses[0].ranks(), std::vector<Rank>{1});
}

TEST_F(Engines, a_group_without_communicator_and_an_unknown_one_are_errors) {
  const std::string path = package(TinyEncoder(4));
  Result<Engine> engine = Engine::load(path, {{"tp", {1, 2}}});
  ASSERT_TRUE(engine.ok());
  EXPECT_THAT(engine->bind().message(),
              HasSubstr("group \"tp\" was loaded for rank 1 of 2: bind needs its communicator"));
  EXPECT_EQ(engine->state(), EngineState::kUnbound);
  run_thread_ranks(1, options(), [&](Communicator comm) {
    EXPECT_THAT(engine->bind({{"tpp", comm}}).message(), HasSubstr("\"tp\""));
  });
  EXPECT_EQ(Engine::load(path, {{"pt", {0, 2}}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Engine::load(path, {}, {.threads = -1}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Engines, ranks_that_loaded_different_packages_are_named) {
  const std::string most = package(TinyEncoder(4, 1), "most.accord");
  const std::string other = package(TinyEncoder(4, 2), "other.accord");
  const std::vector<Status> statuses = on_ranks(3, [&](Communicator comm) {
    return Engine::load_and_bind(comm.rank() == 1 ? other : most, {{"tp", comm}}).status();
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_EQ(status.ranks(), std::vector<Rank>{1});
    EXPECT_THAT(status.message(), HasSubstr("rank 1 loaded a different package"));
  }
}

TEST_F(Engines, more_ranks_than_units_is_an_error_on_every_rank) {
  const std::string path = package(TinyEncoder(3));
  const std::vector<Status> statuses = on_ranks(4, [&](Communicator comm) {
    return Engine::load_and_bind(path, {{"tp", comm}}).status();
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("3 units of 4"));
  }
}

TEST_F(Engines, damage_found_by_one_rank_stops_all_ranks) {
  const TinyEncoder model(4);
  const std::string path = package(model);
  // The last unit of the first sharded weight in the file: only the last rank reads it.
  const std::string file = path + "/weights-00001.safetensors";
  std::ifstream in(file, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::size_t weights_begin = bytes.size() - model.replicated_bytes() - model.sharded_bytes();
  const std::size_t table = TinyEncoder::kVocabulary * 16 * 4;
  bytes[weights_begin + table + 16 * 16 * 4 - 1] ^= 1;
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  const std::vector<Status> statuses = on_ranks(2, [&](Communicator comm) {
    return Engine::load_and_bind(path, {{"tp", comm}}).status();
  });
  EXPECT_EQ(statuses[1].code(), StatusCode::kCorrupt);
  EXPECT_THAT(statuses[1].message(), HasSubstr("\"q\""));
  EXPECT_EQ(statuses[0].code(), StatusCode::kCorrupt);
  EXPECT_EQ(statuses[0].ranks(), std::vector<Rank>{1});
  EXPECT_THAT(statuses[0].message(), AllOf(HasSubstr("rank 1 of group \"tp\""), HasSubstr("\"q\"")));
}

TEST_F(Engines, a_bad_id_fails_on_all_ranks_and_the_next_run_is_correct) {
  const TinyEncoder model(4);
  const std::string path = package(model);
  run_thread_ranks(2, options(), [&](Communicator comm) {
    Result<Engine> engine = Engine::load_and_bind(path, {{"tp", comm}});
    ASSERT_TRUE(engine.ok());
    Result<EngineContext> context = engine->create_context();
    std::vector<std::int64_t> ids = {0, -1};
    EXPECT_THAT(context->run(std::vector<TensorView>{view(ids, {1, 2})}).status().message(),
                HasSubstr("id -1 at position 1"));
    const Result<std::vector<float>> got = run(*context, 1, 3);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_NEAR((*got)[0], model.reference(some_ids(3), 3)[0], 2e-5);
  });
}

}  // namespace
}  // namespace accord
