// Manifests with packed tensors: their units, blocks and formats.

#include <gtest/gtest.h>

#include <array>

#include "engine/package/package.hpp"
#include "package_fixture.hpp"

namespace accord::engine {
namespace {

using nlohmann::json;

class PackedManifests : public PackageFixture {};

// Gives the first tensor two units of `unit` bytes, from byte 128 of its file on. The other tensor follows them.
void set_two_units(json& manifest, int unit) {
  const int begin = 128;
  json& w = manifest["tensors"][0];
  w["granule_bytes"] = unit;
  w["xxh3"] = {std::string(16, '0'), std::string(16, '1')};
  w["offset"] = begin;
  manifest["tensors"][1]["offset"] = begin + 2 * unit;
  manifest["files"][1]["header_size"] = begin;
  manifest["files"][1]["size"] = begin + 2 * unit + 16;
}

TEST_F(PackedManifests, packed_units_are_blocks_of_one_matrix) {
  auto manifest = manifest_;
  json& w = manifest["tensors"][0];
  // [4, 6] in units of 4 inputs: two blocks of 16 outputs x 32 inputs (one group), of which the second has two
  // inputs.
  w["packed"] = {{"type", "int4"}, {"group", 32}, {"minima", true}, {"scales", "float32"}, {"error", 0.25}};
  w["sharding"]["unit"] = 4;
  const int unit = 16 * (4 + 4 + 16);
  set_two_units(manifest, unit);
  const auto read = parse_manifest(manifest.dump());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  const TensorEntry& tensor = read->tensors[0];
  EXPECT_EQ(tensor.packing->error, 0.25);
  EXPECT_EQ(tensor.bytes(), 2U * unit);
  EXPECT_EQ(tensor.granule_range_bytes(1, 1), unsigned{unit});
  const kernels::PackedMatrix whole = tensor.matrix(0, 2, nullptr), second = tensor.matrix(1, 1, nullptr);
  EXPECT_EQ(whole.out(), 4);
  EXPECT_EQ(whole.in(), 6);
  EXPECT_EQ(whole.in_units, 2);
  EXPECT_EQ(whole.in_unit_stride, unit);
  EXPECT_EQ(second.in(), 2);
  EXPECT_EQ(second.format,
            (kernels::PackedFormat{kernels::WeightType::kInt4, 32, kernels::Minimum::kPerGroup, DType::kFloat32}));
}

TEST_F(PackedManifests, codes_may_stand_for_the_numbers_of_a_table) {
  auto manifest = manifest_;
  json& w = manifest["tensors"][0];
  std::array<float, 16> table{-0.75F, 1e30F};
  w["packed"] = {{"type", "table4"}, {"group", 16}, {"scales", "float32"}, {"table", table}};
  w["sharding"]["unit"] = 4;
  set_two_units(manifest, 16 * (4 + 8));
  const auto read = parse_manifest(manifest.dump());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->tensors[0].packing->format,
            (kernels::PackedFormat{kernels::WeightType::kTable4, 16, kernels::Minimum::kNone, DType::kFloat32, table}));
}

TEST_F(PackedManifests, packed_units_of_experts_have_a_block_of_each) {
  auto manifest = manifest_;
  json& w = manifest["tensors"][0];
  // Three experts [4, 6] in units of 4 inputs: each unit has three blocks of 16 outputs x 4 inputs in float16, 128
  // bytes each.
  w["shape"] = {3, 4, 6};
  w["packed"] = {{"type", "float16"}};
  w["sharding"] = {{"group", "tp"}, {"dim", 2}, {"unit", 4}};
  const int unit = 3 * 128;
  set_two_units(manifest, unit);
  const auto read = parse_manifest(manifest.dump());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  const TensorEntry& tensor = read->tensors[0];
  EXPECT_EQ(tensor.matrices(), 3);
  EXPECT_EQ(tensor.matrix_bytes(), 128U);
  EXPECT_EQ(tensor.bytes(), 2U * unit);
  const kernels::PackedMatrix first = tensor.matrix(0, 2, nullptr), last_inputs = tensor.matrix(1, 1, nullptr);
  EXPECT_EQ(first.out(), 4);
  EXPECT_EQ(first.in(), 6);
  EXPECT_EQ(first.in_unit_stride, unit);
  EXPECT_EQ(last_inputs.in(), 2);
}

TEST_F(PackedManifests, packed_units_that_are_experts_have_one_block) {
  auto manifest = manifest_;
  json& w = manifest["tensors"][0];
  // Two experts [4, 6], each 16 outputs x 6 inputs in float16, 192 bytes.
  w["shape"] = {2, 4, 6};
  w["packed"] = {{"type", "float16"}};
  w["sharding"] = {{"group", "tp"}, {"dim", 0}, {"unit", 1}};
  set_two_units(manifest, 192);
  const auto read = parse_manifest(manifest.dump());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  const TensorEntry& tensor = read->tensors[0];
  EXPECT_EQ(tensor.units(), 2);
  EXPECT_EQ(tensor.matrices(), 1);
  EXPECT_EQ(tensor.matrix_bytes(), 192U);
  EXPECT_EQ(tensor.unit_bytes(), 192U);
  const kernels::PackedMatrix second = tensor.matrix(1, 1, nullptr);
  EXPECT_EQ(second.out(), 4);
  EXPECT_EQ(second.in(), 6);
}

TEST_F(PackedManifests, packed_convolutions_have_a_block_of_each_group) {
  auto manifest = manifest_;
  manifest["rules"] = json::array();
  json& w = manifest["tensors"][0];
  w.erase("sharding");
  // [6, 2, 3, 5] in three groups: three blocks of 16 outputs x 30 inputs in float16, 960 bytes each.
  w["shape"] = {6, 2, 3, 5};
  w["packed"] = {{"type", "float16"}, {"groups", 3}};
  const int bytes = 3 * 960;
  set_two_units(manifest, bytes / 2);
  w["granule_bytes"] = bytes;
  w["xxh3"] = {std::string(16, '0')};
  const auto read = parse_manifest(manifest.dump());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  const TensorEntry& tensor = read->tensors[0];
  EXPECT_EQ(tensor.matrices(), 3);
  EXPECT_EQ(tensor.matrix_bytes(), 960U);
  EXPECT_EQ(tensor.bytes(), static_cast<std::uint64_t>(bytes));
  EXPECT_EQ(tensor.matrix(0, 1, nullptr).out(), 2);
  EXPECT_EQ(tensor.matrix(0, 1, nullptr).in(), 30);
}

}  // namespace
}  // namespace accord::engine
