// Saved programs: rejected manifests, and the package for each position.
#include "engine/package/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/hash.hpp"

namespace accord::engine {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json part(const std::string& name, const std::string& runs_in, const std::string& path, char digit) {
  return {{"name", name},
          {"runs_in", runs_in},
          {"path", path},
          {"sha256", std::string(64, digit)},
          {"ops", {"aten.cumprod.default", "aten.relu.default", "aten.relu.default"}},
          {"inputs", {"x"}},
          {"outputs", {"y"}},
          {"reasons", json::array()},
          {"collectives", json::array()},
          {"groups", json::array()},
          {"size", 7}};
}

json rank(const json& groups, const json& parts) {
  return {{"groups", groups}, {"inputs", json::array()}, {"outputs", json::array()},
          {"in_spec", ""},    {"out_spec", ""},          {"parts", parts}};
}

json manifest(const json& world_size, const json& ranks) {
  return {{"format", "accord-program"},
          {"format_version", 1},
          {"producer", "test"},
          {"world_size", world_size},
          {"ranks", ranks}};
}

class Programs : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("accord-program-" + std::to_string(getpid()) + ".accord");
    std::filesystem::create_directory(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  void write(const json& document) {
    const std::string text = document.dump();
    std::ofstream(path_ / "manifest.json") << text;
    std::ofstream(path_ / "manifest.sha256") << sha256_hex(std::as_bytes(std::span(text))) << "\n";
  }
  Result<std::string> at(const std::map<std::string, GroupPlace>& places) {
    return engine_package(path_.string(), places);
  }

  std::filesystem::path path_;
};

TEST_F(Programs, pytorch_partitions_are_named_with_their_ops_once) {
  const auto program = parse_program(
      manifest(nullptr, json::array({rank(json::object(), json::array({part("engine 0", "engine", "e", '0'),
                                                                       part("pytorch 1", "pytorch", "p", '1')}))})));
  ASSERT_TRUE(program.ok()) << program.status().message();
  const Status refused = not_a_single_engine(*program);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("\"pytorch 1\" (aten.cumprod.default, aten.relu.default);"), HasSubstr("accord.load()"),
                    ::testing::Not(HasSubstr("engine 0"))));
}

TEST_F(Programs, an_invalid_manifest_is_rejected) {
  const json good = manifest(
      nullptr, json::array({rank(json::object(), json::array({part("engine 0", "engine", "e.accord", '0')}))}));
  ASSERT_TRUE(parse_program(good).ok());
  const std::pair<const char*, json> changes[] = {{"/ranks/0/parts/0/path", "../outside.accord"},
                                                  {"/ranks/0/parts/0/path", ".hidden"},
                                                  {"/ranks/0/parts/0/runs_in", "somewhere"},
                                                  {"/ranks/0/parts/0/sha256", "12"},
                                                  {"/ranks/0/parts/0/size", -1},
                                                  {"/ranks/0/parts/0/more", 1},
                                                  {"/ranks/0/groups/tp", json::array({-1})},
                                                  {"/ranks/0/groups/tp", 2},
                                                  {"/world_size", 2},
                                                  {"/ranks", json::array()},
                                                  {"/more", 1},
                                                  {"/format_version", "1"}};
  for (const auto& [where, value] : changes) {
    json changed = good;
    changed[json::json_pointer(where)] = value;
    EXPECT_FALSE(parse_program(changed).ok()) << where << " " << value;
  }
}

TEST_F(Programs, a_rank_gets_the_package_made_for_its_position) {
  // Two replicas of two ranks. The ranks of a replica have different packages; the replicas have equal ones.
  const auto engine = [](int number, char digit) {
    return json::array({part("engine 0", "engine", "rank-" + std::to_string(number) + ".accord", digit)});
  };
  json ranks;
  for (int number = 0; number < 4; ++number) {
    const int first = number / 2 * 2;
    ranks.push_back(rank({{"tp", {first, first + 1}}}, engine(number, static_cast<char>('a' + number % 2))));
  }
  write(manifest(4, ranks));
  const auto second = at({{"tp", {1, 2}}});
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE(second->ends_with("/rank-1.accord"));
  EXPECT_THAT(
      std::string(at({}).status().message()),
      HasSubstr("was made by 4 ranks, with groups \"tp\" of 2, and is loaded by exactly as many: this is rank 0 of 1"));
  EXPECT_EQ(at({{"tp", {0, 4}}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(at({{"pt", {0, 2}}}).status().message()), HasSubstr("\"tp\""));
  ranks[2]["parts"] = engine(2, 'f');
  write(manifest(4, ranks));
  EXPECT_THAT(std::string(at({{"tp", {0, 2}}}).status().message()), HasSubstr("their parts differ"));
  std::ofstream(path_ / "manifest.sha256") << std::string(64, '0') << "\n";
  EXPECT_EQ(at({{"tp", {1, 2}}}).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace accord::engine
