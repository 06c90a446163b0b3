#pragma once
// A small package made by hand, in its own directory, for tests to damage.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/hash.hpp"

namespace accord::engine {

/// Two tensors: "w" [4, 6] float32, sharded along dimension 1 in units of 2 (3 granules of 32 bytes), and "b" [4]
/// float32 in granules of 8 bytes; a graph of one linear layer.
class PackageFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            ("accord-" + std::to_string(getpid()) + "-" + info->name() + ".accord");
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
    for (int i = 0; i < 24; ++i) w_.push_back(static_cast<float>(i));
    for (int i = 0; i < 4; ++i) b_.push_back(static_cast<float>(100 + i));
    files_["graph.json"] = graph().dump();
    files_["weights-00001.safetensors"] = weights();
    manifest_ = manifest();
    seal();
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  static nlohmann::json graph() {
    return nlohmann::json::parse(R"({
      "symbols": [{"name": "batch", "min": 1, "max": 64}],
      "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 6]}],
      "parameters": [{"name": "weight", "dtype": "float32", "shape": [4, 6], "tensor": "w"},
                     {"name": "bias", "dtype": "float32", "shape": [4], "tensor": "b"}],
      "nodes": [{"op": "aten.linear.default", "module": "layers.0", "source": "model.py:3",
                 "arguments": {"input": {"value": "x"}, "weight": {"value": "weight"}, "bias": {"value": "bias"}},
                 "outputs": [{"name": "y", "dtype": "float32", "shape": ["batch", 4]}]}],
      "outputs": ["y"]})");
  }

  static std::string bytes_of(const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  // Unit u of "w": columns [2u, 2u + 1] of each row.
  std::string unit_of_w(std::size_t unit) const {
    std::vector<float> values;
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::size_t column = 2 * unit; column < 2 * unit + 2; ++column) values.push_back(w_[row * 6 + column]);
    }
    return bytes_of(values);
  }

  std::string weights() const {
    std::string header = R"({"w":{"dtype":"F32","shape":[3,4,2],"data_offsets":[0,96]},)"
                         R"("b":{"dtype":"F32","shape":[4],"data_offsets":[96,112]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string length(8, '\0');
    const std::uint64_t size = header.size();
    std::memcpy(length.data(), &size, 8);
    return length + header + unit_of_w(0) + unit_of_w(1) + unit_of_w(2) + bytes_of(b_);
  }

  static std::string xxh3_hex(std::string_view bytes) { return hex64(xxh3(std::as_bytes(std::span(bytes)))); }
  static std::string sha256(std::string_view bytes) { return sha256_hex(std::as_bytes(std::span(bytes))); }

  nlohmann::json manifest() const {
    const auto& weights_text = files_.at("weights-00001.safetensors");
    const auto& graph_text = files_.at("graph.json");
    const auto header = weights_text.size() - 112;
    const auto bias = bytes_of(b_);
    return {{"format", "accord-package"},
            {"format_version", 2},
            {"producer", "a test"},
            {"groups", {"tp"}},
            {"rules", {{{"pattern", "layers.*"}, {"style", "row"}, {"unit", 2}, {"group", "tp"}}}},
            {"files",
             {{{"name", "graph.json"}, {"size", graph_text.size()}, {"sha256", sha256(graph_text)}},
              {{"name", "weights-00001.safetensors"},
               {"size", weights_text.size()},
               {"header_size", header},
               {"header_sha256", sha256(std::string_view(weights_text).substr(0, header))}}}},
            {"tensors",
             {{{"name", "w"},
               {"dtype", "float32"},
               {"shape", {4, 6}},
               {"sharding", {{"group", "tp"}, {"dim", 1}, {"unit", 2}}},
               {"file", "weights-00001.safetensors"},
               {"offset", header},
               {"granule_bytes", 32},
               {"xxh3", {xxh3_hex(unit_of_w(0)), xxh3_hex(unit_of_w(1)), xxh3_hex(unit_of_w(2))}}},
              {{"name", "b"},
               {"dtype", "float32"},
               {"shape", {4}},
               {"file", "weights-00001.safetensors"},
               {"offset", header + 96},
               {"granule_bytes", 8},
               {"xxh3", {xxh3_hex(bias.substr(0, 8)), xxh3_hex(bias.substr(8))}}}}}};
  }

  // Writes everything, with the current hashes of the manifest and the graph.
  void seal() {
    manifest_["files"][0]["size"] = files_["graph.json"].size();
    manifest_["files"][0]["sha256"] = sha256(files_["graph.json"]);
    seal_text(manifest_.dump(1));
  }

  // Writes everything, with `manifest` as the text of the manifest.
  void seal_text(const std::string& manifest) {
    files_["manifest.json"] = manifest;
    files_["manifest.sha256"] = sha256(manifest) + "\n";
    for (const auto& [name, text] : files_) write(name, text);
  }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream out(path_ / name, std::ios::binary | std::ios::trunc);
    out << bytes;
    ASSERT_TRUE(out.good());
  }

  std::filesystem::path path_;
  std::map<std::string, std::string> files_;  // name -> contents as written
  nlohmann::json manifest_;
  std::vector<float> w_, b_;
};

}  // namespace accord::engine
