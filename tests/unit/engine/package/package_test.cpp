// Opening packages and reading granules, both intact and damaged ones.

#include "engine/package/package.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <random>

#include "accord/package.hpp"
#include "package_fixture.hpp"

namespace accord::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Packages : public PackageFixture {
 protected:
  // Opens the package and reads every granule, as all ranks together do.
  Status read_everything() const {
    ACCORD_ASSIGN_OR_RETURN(auto package, Package::open(path_));
    for (const auto& tensor : package.manifest().tensors) {
      std::vector<std::byte> bytes(tensor.bytes());
      ACCORD_RETURN_IF_ERROR(package.read_granules(tensor, 0, tensor.granule_xxh3.size(), bytes));
    }
    return {};
  }

  // Returns the tensor to which byte `at` of the weights belongs, quoted; empty if the byte is in the header.
  std::string tensor_at(std::size_t at) const {
    const auto header = files_.at("weights-00001.safetensors").size() - 112;
    if (at < header) return "";
    return at < header + 96 ? "\"w\"" : "\"b\"";
  }

  // Both ways of reading must find the damage and name `file`; reading the granules must also name `tensor`.
  void expect_damage(const std::string& file, const std::string& label, const std::string& tensor = "") const {
    const auto status = read_everything();
    EXPECT_FALSE(status.ok()) << label;
    EXPECT_THAT(status.message(), HasSubstr(file)) << label;
    EXPECT_THAT(status.message(), HasSubstr(tensor)) << label;
    const auto damages = verify_package(path_);
    if (!damages.ok()) {
      EXPECT_EQ(file, "manifest.json") << label;
      return;
    }
    bool named = false;
    for (const auto& damage : *damages) {
      named |= damage.file == file || (file == "manifest.sha256" && damage.file == "manifest.json");
    }
    EXPECT_TRUE(named) << label << ": verify names " << damages->size() << " others";
  }

  Status refused_manifest(const nlohmann::json& manifest) {
    seal_text(manifest.dump());
    return Package::open(path_).status();
  }
};

TEST_F(Packages, a_whole_package_opens_and_verifies) {
  const auto package = Package::open(path_);
  ASSERT_TRUE(package.ok()) << package.status().to_string();
  EXPECT_EQ(package->manifest().sha256, sha256(files_["manifest.json"]));
  EXPECT_EQ(package->manifest().groups, std::vector<std::string>{"tp"});
  EXPECT_EQ(package->graph().nodes.size(), 1u);
  const auto damages = verify_package(path_);
  ASSERT_TRUE(damages.ok());
  EXPECT_TRUE(damages->empty());
}

TEST_F(Packages, granules_are_returned_in_order_and_counted) {
  auto package = Package::open(path_);
  ASSERT_TRUE(package.ok());
  const auto header = files_["weights-00001.safetensors"].size() - 112;
  EXPECT_EQ(package->metadata_bytes_read(),
            files_["manifest.json"].size() + files_["manifest.sha256"].size() + files_["graph.json"].size() + header);
  EXPECT_EQ(package->weight_bytes_read(), 0u);
  const auto tensor = package->tensor("w");
  ASSERT_TRUE(tensor.ok());
  std::string bytes(64, '\0');
  ASSERT_TRUE(package->read_granules(**tensor, 1, 2, std::as_writable_bytes(std::span(bytes))).ok());
  EXPECT_EQ(bytes, unit_of_w(1) + unit_of_w(2));
  EXPECT_EQ(package->weight_bytes_read(), 64u);
}

TEST_F(Packages, reading_past_a_tensor_or_into_wrong_memory_is_rejected) {
  auto package = Package::open(path_);
  ASSERT_TRUE(package.ok());
  const auto& tensor = package->manifest().tensors[0];
  std::vector<std::byte> bytes(96);
  EXPECT_EQ(package->read_granules(tensor, 2, 2, bytes).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(package->read_granules(tensor, ~std::uint64_t{0}, 2, bytes).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(package->read_granules(tensor, 0, 2, bytes).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(package->read_granules(tensor, 3, 0, {}).ok());
}

TEST_F(Packages, a_missing_tensor_is_an_error_that_names_the_nearest) {
  manifest_["tensors"][1]["name"] = "encoder.bias";
  auto graph = PackageFixture::graph();
  graph["parameters"][1]["tensor"] = "encoder.bias";
  files_["graph.json"] = graph.dump();
  seal();
  const auto package = Package::open(path_);
  ASSERT_TRUE(package.ok()) << package.status().to_string();
  const auto tensor = package->tensor("encoder.bais");
  EXPECT_EQ(tensor.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(tensor.status().message(), HasSubstr("did you mean \"encoder.bias\"?"));
}

TEST_F(Packages, any_flipped_byte_is_detected) {
  std::mt19937 random(7);
  for (const auto& [name, text] : files_) {
    // Every byte of the small files, with one random bit flipped.
    for (std::size_t i = 0; i < text.size(); ++i) {
      auto damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << random() % 8));
      write(name, damaged);
      expect_damage(name, name + " byte " + std::to_string(i), name == "weights-00001.safetensors" ? tensor_at(i) : "");
    }
    write(name, text);
  }
  EXPECT_TRUE(read_everything().ok());
}

TEST_F(Packages, any_removed_or_added_byte_is_detected) {
  for (const auto& [name, text] : files_) {
    for (std::size_t length = 0; length < text.size(); ++length) {
      write(name, text.substr(0, length));
      expect_damage(name, name + " cut to " + std::to_string(length));
    }
    write(name, text + '\0');
    expect_damage(name, name + " with a byte more");
    write(name, text);
  }
}

TEST_F(Packages, damage_is_reported_with_file_tensor_granule_and_bytes) {
  auto damaged = files_["weights-00001.safetensors"];
  const auto header = damaged.size() - 112;
  damaged[header + 40] ^= 1;
  write("weights-00001.safetensors", damaged);
  const auto message = read_everything().message();
  EXPECT_THAT(message, HasSubstr("weights-00001.safetensors: tensor \"w\": granule 1 (bytes " +
                                 std::to_string(header + 32) + " to " + std::to_string(header + 63) + ") is damaged"));
  // The other granules are intact and can be read.
  auto package = Package::open(path_);
  std::vector<std::byte> bytes(32);
  EXPECT_TRUE(package->read_granules(package->manifest().tensors[0], 0, 1, bytes).ok());
  EXPECT_TRUE(package->read_granules(package->manifest().tensors[0], 2, 1, bytes).ok());
}

TEST_F(Packages, verify_lists_every_damaged_place) {
  auto damaged = files_["weights-00001.safetensors"];
  const auto header = damaged.size() - 112;
  damaged[9] ^= 1;
  damaged[header] ^= 1;
  damaged[header + 111] ^= 1;
  write("weights-00001.safetensors", damaged);
  write("graph.json", files_["graph.json"] + " ");
  const auto damages = verify_package(path_);
  ASSERT_TRUE(damages.ok());
  ASSERT_EQ(damages->size(), 4u);
  EXPECT_EQ((*damages)[0].file, "graph.json");
  EXPECT_THAT((*damages)[0].what, StartsWith("has " + std::to_string(files_["graph.json"].size() + 1) + " bytes"));
  EXPECT_THAT((*damages)[1].what, HasSubstr("safetensors header"));
  EXPECT_THAT((*damages)[2].what, HasSubstr("tensor \"w\": granule 0"));
  EXPECT_THAT((*damages)[3].what, HasSubstr("tensor \"b\": granule 1"));
}

TEST_F(Packages, verify_detects_an_unknown_op) {
  std::string& graph = files_["graph.json"];
  graph.replace(graph.find("aten.linear"), 11, "aten.lineal");
  seal();
  EXPECT_EQ(Package::open(path_).status().code(), StatusCode::kUnsupported);
  const auto damages = verify_package(path_);
  ASSERT_TRUE(damages.ok());
  ASSERT_EQ(damages->size(), 1u);
  EXPECT_EQ((*damages)[0].file, "graph.json");
  EXPECT_THAT((*damages)[0].what, HasSubstr("\"aten.lineal.default\""));
}

TEST_F(Packages, verify_reports_progress_up_to_all_bytes) {
  static std::uint64_t last = 0, total = 0;
  ASSERT_TRUE(verify_package(path_, [](std::uint64_t done, std::uint64_t all) {
                EXPECT_GE(done, last);
                last = done;
                total = all;
              }).ok());
  std::uint64_t bytes = 0;
  for (const auto& [name, text] : files_) bytes += text.size();
  EXPECT_EQ(last, bytes);
  EXPECT_EQ(total, bytes);
}

TEST_F(Packages, the_weights_of_another_package_are_detected) {
  // Same header and length, different numbers: only the granules' hashes show it.
  for (auto& value : w_) value += 1;
  write("weights-00001.safetensors", weights());
  EXPECT_TRUE(Package::open(path_).ok());
  EXPECT_THAT(read_everything().message(), HasSubstr("tensor \"w\""));
  EXPECT_EQ(verify_package(path_)->size(), 3u);
}

TEST_F(Packages, swapped_granules_are_detected) {
  auto swapped = files_["weights-00001.safetensors"];
  const auto header = swapped.size() - 112;
  std::swap_ranges(swapped.begin() + header, swapped.begin() + header + 32, swapped.begin() + header + 32);
  write("weights-00001.safetensors", swapped);
  expect_damage("weights-00001.safetensors", "swapped", "\"w\"");
}

TEST_F(Packages, a_file_truncated_after_opening_is_detected) {
  auto package = Package::open(path_);
  ASSERT_TRUE(package.ok());
  const auto end = files_["weights-00001.safetensors"].size() - 8;
  write("weights-00001.safetensors", files_["weights-00001.safetensors"].substr(0, end));
  const auto& tensor = package->manifest().tensors[1];
  std::vector<std::byte> bytes(16);
  const auto status = package->read_granules(tensor, 0, 2, bytes);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(),
              HasSubstr("tensor \"b\": weights-00001.safetensors: ends at byte " + std::to_string(end)));
}

TEST_F(Packages, unexpected_files_in_the_package_are_listed) {
  write("notes.txt", "hello");
  const auto damages = verify_package(path_);
  ASSERT_EQ(damages->size(), 1u);
  EXPECT_EQ((*damages)[0].file, "notes.txt");
  EXPECT_EQ((*damages)[0].what, "does not belong to the package");
  EXPECT_TRUE(read_everything().ok());
}

TEST_F(Packages, links_directories_and_fifos_are_not_files_of_a_package) {
  const auto file = path_ / "weights-00001.safetensors";
  const auto elsewhere = path_ / "elsewhere";
  std::filesystem::rename(file, elsewhere);
  std::filesystem::create_symlink(elsewhere, file);
  EXPECT_THAT(read_everything().message(), HasSubstr("is a symbolic link"));
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_THAT(read_everything().message(), HasSubstr("is not a regular file"));
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_THAT(read_everything().message(), HasSubstr("is not a regular file"));
  std::filesystem::remove(file);
  EXPECT_THAT(read_everything().message(), HasSubstr("weights-00001.safetensors: is missing"));
}

TEST_F(Packages, a_path_that_is_not_a_package_is_not_found) {
  EXPECT_EQ(Package::open(path_ / "nothing").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Package::open(path_ / "graph.json").status().code(), StatusCode::kNotFound);
  std::filesystem::remove(path_ / "manifest.json");
  EXPECT_EQ(Package::open(path_).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(verify_package(path_).status().code(), StatusCode::kNotFound);
}

TEST_F(Packages, another_format_version_is_unsupported) {
  manifest_["format_version"] = 3;
  manifest_["something_new"] = true;
  const auto status = refused_manifest(manifest_);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("format version 3; this accord reads version 2"));
}

TEST_F(Packages, an_unknown_op_is_unsupported_and_named_with_its_source_line) {
  auto graph = PackageFixture::graph();
  graph["nodes"][0]["op"] = "aten.linaer.default";
  files_["graph.json"] = graph.dump();
  seal();
  const auto status = Package::open(path_).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("op \"aten.linaer.default\" in module \"layers.0\" (model.py:3)"));
  EXPECT_THAT(status.message(), HasSubstr("aten.linear.default"));
}

TEST_F(Packages, parameters_that_differ_from_the_manifest_are_rejected) {
  auto graph = PackageFixture::graph();
  graph["parameters"][0]["shape"] = {6, 4};
  files_["graph.json"] = graph.dump();
  seal();
  EXPECT_THAT(Package::open(path_).status().message(),
              HasSubstr("parameter \"w\" is float32 [6, 4], manifest.json has float32 [4, 6]"));
  graph["parameters"][0]["tensor"] = "v";
  files_["graph.json"] = graph.dump();
  seal();
  EXPECT_THAT(Package::open(path_).status().message(), HasSubstr("parameter \"v\" is not in manifest.json"));
}

}  // namespace
}  // namespace accord::engine
