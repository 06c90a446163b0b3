// Manifests with wrong contents: each is rejected, with the place and the reason.

#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "engine/package/package.hpp"
#include "package_fixture.hpp"

namespace accord::engine {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Manifests : public PackageFixture {};

struct ManifestFault {
  const char* name;
  std::function<void(json&)> apply;
  const char* message;
};

TEST_F(Manifests, a_valid_manifest_is_read_completely) {
  const auto manifest = parse_manifest(manifest_.dump());
  ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
  EXPECT_EQ(manifest->format_version, 2);
  EXPECT_EQ(manifest->producer, "a test");
  ASSERT_EQ(manifest->rules.size(), 1u);
  EXPECT_EQ(manifest->rules[0].pattern, "layers.*");
  EXPECT_EQ(manifest->rules[0].style, ParallelStyle::kRow);
  ASSERT_EQ(manifest->tensors.size(), 2u);
  EXPECT_EQ(manifest->tensors[0].sharding, (Sharding{"tp", 1, 2}));
  EXPECT_EQ(manifest->tensors[0].bytes(), 96u);
  EXPECT_EQ(hex64(manifest->tensors[0].granule_xxh3[1]), xxh3_hex(unit_of_w(1)));
  EXPECT_FALSE(manifest->tensors[1].sharding.has_value());
}

TEST_F(Manifests, false_contents_are_rejected_with_their_location) {
  const std::vector<ManifestFault> faults = {
      {"unknown key", [](json& m) { m["tensor"] = 1; }, "unknown key \"tensor\"; did you mean \"tensors\"?"},
      {"unknown key of a tensor", [](json& m) { m["tensors"][0]["shapes"] = 1; }, "did you mean \"shape\"?"},
      {"missing key", [](json& m) { m.erase("groups"); }, "manifest.json: \"groups\" is missing"},
      {"another format", [](json& m) { m["format"] = "other"; }, "\"format\" is not \"accord-package\""},
      {"version as text", [](json& m) { m["format_version"] = "1"; }, "\"format_version\""},
      {"negative dimension",
       [](json& m) {
         m["tensors"][0]["shape"] = {-4, 6};
       },
       "tensor \"w\": shape: -4 is not"},
      {"zero dimension",
       [](json& m) {
         m["tensors"][0]["shape"] = {0, 6};
       },
       "tensor \"w\": shape: 0 is not"},
      {"fractional dimension",
       [](json& m) {
         m["tensors"][0]["shape"] = {4.5, 6};
       },
       "expected a whole number"},
      {"dimension past 64 bits",
       [](json& m) {
         m["tensors"][0]["shape"] = {~std::uint64_t{0}, 6};
       },
       "is not between"},
      {"product that overflows",
       [](json& m) {
         m["tensors"][0]["shape"] = {1ll << 40, 1ll << 40};
       },
       "more than"},
      {"too many dimensions", [](json& m) { m["tensors"][0]["shape"] = std::vector<int>(9, 1); }, "more than 8"},
      {"unknown dtype", [](json& m) { m["tensors"][0]["dtype"] = "float23"; }, "tensor \"w\""},
      {"dtype of communicators only", [](json& m) { m["tensors"][0]["dtype"] = "float8_e5m2"; }, "unknown dtype"},
      {"tensor twice", [](json& m) { m["tensors"][1]["name"] = "w"; }, "two tensors \"w\""},
      {"tensor without name", [](json& m) { m["tensors"][1]["name"] = ""; }, "tensor 1: name: is empty"},
      {"long name", [](json& m) { m["tensors"][1]["name"] = std::string(513, 'x'); }, "longer than 512"},
      {"control character", [](json& m) { m["tensors"][1]["name"] = "a\nb"; }, "control characters"},
      {"overlap", [](json& m) { m["tensors"][1]["offset"] = m["tensors"][0]["offset"]; }, "tensors overlap"},
      {"gap", [](json& m) { m["tensors"].erase(0); }, "tensors leave a gap"},
      {"offset past the file", [](json& m) { m["tensors"][1]["offset"] = 1 << 20; }, "tensors leave a gap"},
      {"negative offset", [](json& m) { m["tensors"][1]["offset"] = -1; }, "offset: -1 is not"},
      {"tensor past the end",
       [](json& m) {
         m["tensors"][1]["shape"] = {8};
         m["tensors"][1]["granule_bytes"] = 16;
       },
       "tensor \"b\" ends at byte"},
      {"bytes after the last tensor", [](json& m) { m["files"][1]["size"] = m["files"][1]["size"].get<int>() + 1; },
       "its tensors end at"},
      {"absurd file size", [](json& m) { m["files"][1]["size"] = 1ll << 62; }, "size: 4611686018427387904 is not"},
      {"header past the file", [](json& m) { m["files"][1]["header_size"] = 1 << 20; }, "header_size"},
      {"unknown file", [](json& m) { m["tensors"][0]["file"] = "other.safetensors"; }, "is not listed"},
      {"file twice", [](json& m) { m["files"].push_back(m["files"][1]); }, "two files"},
      {"no files", [](json& m) { m["files"] = json::array(); }, "lists no files"},
      {"no graph", [](json& m) { m["files"][0]["name"] = "graph2.json"; }, "not \"graph.json\""},
      {"path out of the package", [](json& m) { m["files"][1]["name"] = "../x.safetensors"; }, "is not allowed"},
      {"absolute path", [](json& m) { m["files"][1]["name"] = "/x.safetensors"; }, "is not allowed"},
      {"hidden file", [](json& m) { m["files"][1]["name"] = ".x.safetensors"; }, "is not allowed"},
      {"NUL in a name", [](json& m) { m["files"][1]["name"] = std::string("a\0.safetensors", 14); }, "control"},
      {"manifest as weights", [](json& m) { m["files"][1]["name"] = "manifest.json"; }, "is not allowed"},
      {"sha256 in capitals", [](json& m) { m["files"][1]["header_sha256"] = std::string(64, 'A'); },
       "lower-case hexadecimal"},
      {"short sha256", [](json& m) { m["files"][0]["sha256"] = "abc"; }, "expected 64"},
      {"unknown group", [](json& m) { m["tensors"][0]["sharding"]["group"] = "pp"; }, "group \"pp\""},
      {"group twice",
       [](json& m) {
         m["groups"] = {"tp", "tp"};
       },
       "two groups \"tp\""},
      {"dimension out of range", [](json& m) { m["tensors"][0]["sharding"]["dim"] = 2; },
       "dim: 2 is not between 0 and 1"},
      {"unit past the dimension", [](json& m) { m["tensors"][0]["sharding"]["unit"] = 7; }, "unit: 7 is not"},
      {"unit of zero", [](json& m) { m["tensors"][0]["sharding"]["unit"] = 0; }, "unit: 0 is not"},
      {"granule that is not a unit", [](json& m) { m["tensors"][0]["granule_bytes"] = 48; },
       "each of its 3 units has 32"},
      {"granule that is not a shorter unit", [](json& m) { m["tensors"][0]["sharding"]["unit"] = 4; },
       "each of its 2 units has 64"},
      {"granule that cuts an element", [](json& m) { m["tensors"][1]["granule_bytes"] = 6; }, "not a whole number"},
      {"absurd granule", [](json& m) { m["tensors"][1]["granule_bytes"] = 1ll << 40; }, "granule_bytes"},
      {"missing hash", [](json& m) { m["tensors"][0]["xxh3"].erase(0); }, "2 hashes for 3 granules"},
      {"hash of wrong length", [](json& m) { m["tensors"][0]["xxh3"][0] = "abc"; }, "16 lower-case"},
      {"hash as number", [](json& m) { m["tensors"][0]["xxh3"][0] = 5; }, "expected text"},
      {"packed as nothing",
       [](json& m) {
         m["tensors"][0]["packed"] = {{"type", "int9"}};
       },
       "did you mean \"int8\"?"},
      {"groups of floats",
       [](json& m) {
         m["tensors"][0]["packed"] = {{"type", "float32"}, {"group", 32}};
       },
       "packed: packed weights of 32 bits in groups of 32"},
      {"packed in units of other bytes",
       [](json& m) {
         m["tensors"][0]["packed"] = {{"type", "bfloat16"}};
       },
       "each of its 3 units has 64"},
      {"packed where no vector may begin",
       [](json& m) {
         json& w = m["tensors"][0];
         w["packed"] = {{"type", "float32"}};
         w["granule_bytes"] = 128;
         w["offset"] = 136;
       },
       "tensor \"w\": offset: 136, but packed weights begin at multiples of 64"},
      {"a packed vector",
       [](json& m) {
         m["tensors"][1]["packed"] = {{"type", "float32"}};
       },
       "only matrices"},
      {"packed experts that are divided by several experts",
       [](json& m) {
         json& w = m["tensors"][0];
         w["shape"] = {6, 2, 2};
         w["sharding"]["dim"] = 0;
         w["packed"] = {{"type", "float32"}};
       },
       "packed experts are divided one by one, or within each expert"},
      {"packed experts that are transposed",
       [](json& m) {
         m["tensors"][0]["shape"] = {2, 6, 2};
         m["tensors"][0]["packed"] = {{"type", "float32"}, {"transposed", true}};
       },
       "only matrices are packed transposed"},
      {"groups of a matrix",
       [](json& m) {
         m["tensors"][0]["packed"] = {{"type", "float32"}, {"groups", 2}};
       },
       "groups need the weight of a convolution"},
      {"groups that do not divide the outputs",
       [](json& m) {
         json& b = m["tensors"][1];
         b["shape"] = {4, 1, 1};
         b["packed"] = {{"type", "float32"}, {"groups", 3}};
       },
       "groups need the weight of a convolution"},
      {"more groups than outputs",
       [](json& m) {
         json& b = m["tensors"][1];
         b["shape"] = {4, 1, 1};
         b["packed"] = {{"type", "float32"}, {"groups", 5}};
       },
       "groups"},
      {"a convolution that is divided",
       [](json& m) {
         json& w = m["tensors"][0];
         w["shape"] = {4, 6, 1};
         w["packed"] = {{"type", "float32"}, {"groups", 2}};
       },
       "groups need the weight of a convolution"},
      {"unknown scales",
       [](json& m) {
         m["tensors"][0]["packed"] = {{"type", "int8"}, {"group", 32}, {"scales", "float8"}};
       },
       "scales are"},
      {"minima in words",
       [](json& m) {
         m["tensors"][0]["packed"] = {{"type", "int4"}, {"group", 32}, {"minima", "yes"}};
       },
       "minima is neither true nor false"},
      {"codes without a table",
       [](json& m) {
         m["tensors"][0]["packed"] = {{"type", "table4"}, {"group", 32}};
       },
       "a table belongs to weights of type table4"},
      {"a short table",
       [](json& m) {
         m["tensors"][0]["packed"] = {{"type", "table4"}, {"group", 32}, {"table", {0, 1, 2.5}}};
       },
       "table is not 16 numbers"},
      {"units that cannot stay together", [](json& m) { m["tensors"][0]["sharding"]["together"] = 2; },
       "3 units are not a multiple of 2"},
      {"copies of a row", [](json& m) { m["rules"][0]["copies"] = true; }, "would count twice"},
      {"copies in words", [](json& m) { m["rules"][0]["copies"] = "yes"; }, "copies is neither true nor false"},
      {"experts of several in a unit",
       [](json& m) {
         m["rules"][0]["style"] = "expert";
         m["rules"][0]["unit"] = 2;
       },
       "experts are divided one by one"},
      {"unknown style", [](json& m) { m["rules"][0]["style"] = "diagonal"; }, "unknown style \"diagonal\""},
      {"rule without unit", [](json& m) { m["rules"][0]["unit"] = 0; }, "rule 0: unit"},
      {"tensors as object", [](json& m) { m["tensors"] = json::object(); }, "tensors: expected an array"},
  };
  for (const auto& fault : faults) {
    auto manifest = manifest_;
    fault.apply(manifest);
    const auto status = parse_manifest(manifest.dump()).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << fault.name;
    EXPECT_THAT(status.message(), HasSubstr(fault.message)) << fault.name;
    EXPECT_THAT(status.message(), HasSubstr("manifest.json")) << fault.name;
  }
}

TEST_F(Manifests, text_that_is_not_json_is_rejected_with_the_byte) {
  EXPECT_THAT(parse_manifest("{\"format\": }").status().message(), HasSubstr("invalid JSON at byte 12"));
  EXPECT_EQ(parse_manifest("").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(parse_manifest("[]").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(parse_manifest("\xff\xfe").status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(parse_manifest("{\"a\": 1, \"a\": 2}").status().message(), HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(parse_manifest(std::string(100'000, '[')).status().message(), HasSubstr("is nested deeper than 16"));
}

TEST_F(Manifests, random_edits_never_crash_the_reader) {
  std::mt19937 random(11);
  const auto text = manifest_.dump();
  for (int round = 0; round < 20'000; ++round) {
    auto edited = text;
    for (auto edits = 1 + random() % 3; edits > 0; --edits) {
      const auto at = random() % edited.size();
      if (random() % 3 == 0)
        edited.erase(at, random() % 10);
      else if (random() % 2 == 0)
        edited[at] = static_cast<char>(random());
      else
        edited.insert(at, text, random() % text.size(), random() % 20);
    }
    const auto manifest = parse_manifest(edited);
    if (manifest.ok()) continue;
    EXPECT_TRUE(manifest.status().code() == StatusCode::kCorrupt ||
                manifest.status().code() == StatusCode::kUnsupported);
  }
}

TEST(Units, grouped_units_split_across_many_ranks_and_copies_are_shared) {
  const Sharding together{"tp", 0, 1, 3, false}, copies{"tp", 0, 1, 1, true};
  const auto range = [](const Sharding& sharding, std::int64_t units, Rank rank, int size) {
    const auto found = units_of_rank(sharding, units, rank, size);
    return found ? std::pair(found->first, found->count) : std::pair<std::int64_t, std::int64_t>(-1, -1);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  // 9 query heads with 3 key heads: 6 and 3 for two ranks, 2 1 2 1 2 1 for six.
  EXPECT_EQ(range(together, 9, 0, 2), Pair(0, 6));
  EXPECT_EQ(range(together, 9, 1, 2), Pair(6, 3));
  EXPECT_EQ(range(together, 9, 2, 6), Pair(3, 2));
  EXPECT_EQ(range(together, 9, 3, 6), Pair(5, 1));
  EXPECT_EQ(range(copies, 3, 2, 6), Pair(1, 1));
  EXPECT_EQ(range(copies, 3, 3, 6), Pair(1, 1));
  EXPECT_EQ(range(copies, 3, 0, 2), Pair(0, 2));
  for (const auto& sharding : {together, copies})
    EXPECT_EQ(range(sharding, 9, 0, sharding.copies ? 10 : 4), Pair(-1, -1));
  EXPECT_EQ(range(together, 9, 0, 12), Pair(-1, -1));  // fewer units than ranks
}

TEST(Units, are_distributed_evenly_and_the_first_ranks_get_one_more) {
  // 14 units over 4 ranks: 4, 4, 3, 3.
  const std::int64_t first[] = {0, 4, 8, 11};
  const std::int64_t count[] = {4, 4, 3, 3};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(units_of_rank(14, rank, 4).first, first[rank]);
    EXPECT_EQ(units_of_rank(14, rank, 4).count, count[rank]);
  }
  for (std::int64_t units = 1; units < 40; ++units) {
    for (int size = 1; size < 9; ++size) {
      std::int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const auto range = units_of_rank(units, rank, size);
        EXPECT_EQ(range.first, next);
        next += range.count;
      }
      EXPECT_EQ(next, units);
    }
  }
}

}  // namespace
}  // namespace accord::engine
