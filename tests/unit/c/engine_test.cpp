// Engines as C handles: the same numbers as from the C++ interface, and the results of wrong use.
#include "accord/engine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "ranks/process_ranks.hpp"
#include "unit/c/c_ranks.hpp"
#include "unit/engine/package/small_packages.hpp"

namespace accord {
namespace {

using engine::some_ids;
using engine::TinyEncoder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::is_ok;
using testing::run_c_ranks;

class CEngines : public ::testing::Test {
 protected:
  void SetUp() override { TinyEncoder(4).write(path_); }

  std::vector<float> expected() {
    const Result<Engine> engine = Engine::load_and_bind(path_, {});
    Result<EngineContext> context = Engine(*engine).create_context();
    const TensorView input{{ids_.data(), ids_.size(), DType::kInt64, {}}, {2, 4}};
    const auto outputs = context->run({&input, 1});
    const auto* values = static_cast<const float*>((*outputs)[0].buffer.data);
    return {values, values + (*outputs)[0].buffer.count};
  }

  testing::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/encoder.accord";
  std::vector<std::int64_t> ids_ = some_ids(8);
};

TEST_F(CEngines, run_on_ranks_as_in_cpp) {
  const std::vector<float> right = expected();
  run_c_ranks(2, [&](accord_communicator_t* communicator, int) {
    const accord_engine_group_t group = {"tp", communicator};
    accord_engine_t* engine = nullptr;
    ASSERT_TRUE(is_ok(accord_engine_load(path_.c_str(), &group, 1, nullptr, &engine)));
    const int64_t shape[] = {2, 4};
    std::vector<std::int64_t> ids = ids_;
    const accord_tensor_t input = {ids.data(), shape, 2, ACCORD_INT64};
    for (int run = 0; run < 2; ++run) {
      accord_tensor_t output = {};
      ASSERT_TRUE(is_ok(accord_engine_run(engine, &input, 1, &output, 1)));
      EXPECT_EQ(output.dtype, ACCORD_FLOAT32);
      std::size_t count = 1;
      for (int i = 0; i < output.dimensions; ++i) count *= static_cast<std::size_t>(output.shape[i]);
      ASSERT_EQ(count, right.size());
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_NEAR(static_cast<const float*>(output.data)[i], right[i], 1e-5F) << i;
    }
    accord_engine_free(engine);
  });
}

TEST_F(CEngines, name_invalid_arguments) {
  accord_engine_t* engine = nullptr;
  EXPECT_EQ(accord_engine_load((path_ + "x").c_str(), nullptr, 0, nullptr, &engine), ACCORD_NOT_FOUND);
  EXPECT_EQ(engine, nullptr);
  const accord_engine_group_t no_communicator = {"tp", nullptr};
  EXPECT_EQ(accord_engine_load(path_.c_str(), &no_communicator, 1, nullptr, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 1, nullptr, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("groups is null"));
  ASSERT_TRUE(is_ok(accord_engine_load(path_.c_str(), nullptr, 0, nullptr, &engine)));
  const int64_t shape[] = {2, 4};
  accord_tensor_t input = {ids_.data(), shape, 2, ACCORD_INT64};
  accord_tensor_t output = {};
  EXPECT_EQ(accord_engine_run(engine, &input, 1, &output, 2), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("1 inputs and 2 outputs were given, but the engine has 1 and 1"));
  input.dtype = 42;
  EXPECT_EQ(accord_engine_run(engine, &input, 1, &output, 1), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("dtype 42 is not defined in accord.h"));
  input.dtype = ACCORD_FLOAT32;
  EXPECT_EQ(accord_engine_run(engine, &input, 1, &output, 1), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("int64"));
  const int64_t negative[] = {2, -4};
  input = {ids_.data(), negative, 2, ACCORD_INT64};
  EXPECT_EQ(accord_engine_run(engine, &input, 1, &output, 1), ACCORD_INVALID_ARGUMENT);
  input.shape = nullptr;
  EXPECT_EQ(accord_engine_run(engine, &input, 1, &output, 1), ACCORD_INVALID_ARGUMENT);
  accord_engine_free(engine);
  accord_engine_free(nullptr);
}

TEST_F(CEngines, are_loaded_with_the_given_options) {
  accord_engine_t* engine = nullptr;
  accord_engine_options_t options = ACCORD_ENGINE_OPTIONS_INIT;
  options.memory_limit = 100;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_RESOURCE_EXHAUSTED);
  EXPECT_THAT(accord_last_error(), HasSubstr("the limit is 100 B"));
  options = ACCORD_ENGINE_OPTIONS_INIT;
  options.canonical_ranks = 3;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("canonical_ranks is 3"));
  options.canonical_ranks = 4;
  options.threads = 2;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_OK);
  accord_engine_free(engine);
  options.threads = -1;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  options.struct_size = 3;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("ACCORD_ENGINE_OPTIONS_INIT"));
}

TEST_F(CEngines, compute_and_sum_with_the_given_options) {
  accord_engine_t* engine = nullptr;
  accord_engine_options_t options = ACCORD_ENGINE_OPTIONS_INIT;
  options.all_reduce_dtype = ACCORD_FLOAT16;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("all_reduce_dtype is float16; expected none or int8"));
  options.all_reduce_dtype = 42;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("all_reduce_dtype 42 is not defined in accord.h"));
  options.all_reduce_dtype = ACCORD_INT8;
  options.overlap_rows = 2;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("overlap_rows cannot be combined with all_reduce_dtype"));
  options.all_reduce_dtype = 0;
  options.activation_dtype = ACCORD_FLOAT16;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("activation_dtype is float16"));
  options.activation_dtype = ACCORD_FLOAT8_E4M3FN;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_UNSUPPORTED);
  EXPECT_THAT(accord_last_error(), HasSubstr("activation_dtype float8_e4m3fn is for engines on GPUs"));
  options.activation_dtype = 0;
  options.reserved = 3;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(),
              HasSubstr("reserved is 3, expected 0: initialize the struct with ACCORD_ENGINE_OPTIONS_INIT"));
  options.reserved = 0;
  options.overlap_rows = -2;
  EXPECT_EQ(accord_engine_load(path_.c_str(), nullptr, 0, &options, &engine), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("overlap_rows is -2"));
  // That the options reach the engine shows in the ranks' comparison of them.
  run_c_ranks(2, [&](accord_communicator_t* communicator, int rank) {
    const accord_engine_group_t group = {"tp", communicator};
    accord_engine_t* loaded = nullptr;
    accord_engine_options_t of_rank = ACCORD_ENGINE_OPTIONS_INIT;
    of_rank.overlap_rows = 2 * rank;
    EXPECT_EQ(accord_engine_load(path_.c_str(), &group, 1, &of_rank, &loaded), ACCORD_MISMATCH);
    of_rank = ACCORD_ENGINE_OPTIONS_INIT;
    of_rank.all_reduce_dtype = rank == 0 ? 0 : ACCORD_INT8;
    EXPECT_EQ(accord_engine_load(path_.c_str(), &group, 1, &of_rank, &loaded), ACCORD_MISMATCH);
    of_rank = ACCORD_ENGINE_OPTIONS_INIT;
    of_rank.activation_dtype = rank == 0 ? 0 : ACCORD_INT8;
    EXPECT_EQ(accord_engine_load(path_.c_str(), &group, 1, &of_rank, &loaded), ACCORD_MISMATCH);
  });
}

TEST_F(CEngines, reject_a_program_with_pytorch_partitions_and_name_their_ops) {
  const auto none = nlohmann::json::array();
  const nlohmann::json part = {{"name", "pytorch 0"},
                               {"runs_in", "pytorch"},
                               {"path", "pytorch-0.pt2"},
                               {"sha256", std::string(64, '0')},
                               {"ops", {"aten.cumprod.default"}},
                               {"inputs", {"x"}},
                               {"outputs", {"y"}},
                               {"reasons", none},
                               {"collectives", none},
                               {"groups", none},
                               {"size", 7}};
  const nlohmann::json rank = {{"groups", nlohmann::json::object()},
                               {"inputs", none},
                               {"outputs", none},
                               {"in_spec", ""},
                               {"out_spec", ""},
                               {"parts", {part}}};
  const nlohmann::json manifest = {{"format", "accord-program"},
                                   {"format_version", 1},
                                   {"producer", "test"},
                                   {"world_size", nullptr},
                                   {"ranks", {rank}}};
  const std::string path = directory_.path() + "/program.accord";
  const std::string text = manifest.dump();
  std::filesystem::create_directory(path);
  std::ofstream(path + "/manifest.json") << text;
  std::ofstream(path + "/manifest.sha256") << sha256_hex(std::as_bytes(std::span(text))) << "\n";
  accord_engine_t* engine = nullptr;
  EXPECT_EQ(accord_engine_load(path.c_str(), nullptr, 0, nullptr, &engine), ACCORD_UNSUPPORTED);
  EXPECT_EQ(engine, nullptr);
  EXPECT_THAT(accord_last_error(), AllOf(HasSubstr("\"pytorch 0\" (aten.cumprod.default)"), HasSubstr("Python only")));
}

TEST_F(CEngines, are_split_into_stages_and_reject_a_duplicate_group) {
  const std::vector<float> right = expected();
  run_c_ranks(2, [&](accord_communicator_t* communicator, int) {
    accord_engine_t* engine = nullptr;
    const accord_engine_group_t twice[] = {{"pp", communicator}, {"pp", communicator}};
    EXPECT_EQ(accord_engine_load(path_.c_str(), twice, 2, nullptr, &engine), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("group \"pp\" appears twice"));
    ASSERT_TRUE(is_ok(accord_engine_load(path_.c_str(), twice, 1, nullptr, &engine)));
    const int64_t shape[] = {2, 4};
    std::vector<std::int64_t> ids = ids_;
    const accord_tensor_t input = {ids.data(), shape, 2, ACCORD_INT64};
    accord_tensor_t output = {};
    ASSERT_TRUE(is_ok(accord_engine_run(engine, &input, 1, &output, 1)));
    for (std::size_t i = 0; i < right.size(); ++i)
      EXPECT_NEAR(static_cast<const float*>(output.data)[i], right[i], 1e-5F) << i;
    accord_engine_free(engine);
  });
}

TEST_F(CEngines, without_inputs_need_no_input_list) {
  engine::GraphWriter writer;
  const auto shape = engine::shape_of({"4"});
  writer.output(writer.node("aten.neg.default", {{"self", engine::of(writer.parameter("w", shape))}}, shape));
  const std::string path = directory_.path() + "/constant.accord";
  engine::write_package(path, writer.graph(), {{"w", {1, 2, 3, 4}}}, {});
  accord_engine_t* engine = nullptr;
  ASSERT_TRUE(is_ok(accord_engine_load(path.c_str(), nullptr, 0, nullptr, &engine)));
  accord_tensor_t output = {};
  ASSERT_TRUE(is_ok(accord_engine_run(engine, nullptr, 0, &output, 1)));
  EXPECT_EQ(static_cast<const float*>(output.data)[3], -4.0F);
  accord_engine_free(engine);
}

TEST_F(CEngines, are_described_as_by_the_command) {
  size_t needed = 0;
  ASSERT_TRUE(is_ok(accord_engine_inspect(path_.c_str(), nullptr, 0, &needed)));
  std::string json(needed, '?');
  ASSERT_TRUE(is_ok(accord_engine_inspect(path_.c_str(), json.data(), json.size(), nullptr)));
  EXPECT_EQ(nlohmann::json::parse(json.c_str()).at("groups").at(0), "tp");
}

}  // namespace
}  // namespace accord
