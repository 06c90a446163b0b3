// Packages with float8 weights: impossible descriptions are rejected, and so are units that contradict each other.
#include <gmock/gmock.h>

#include "device/device_memory.hpp"
#include "engine/package/package.hpp"
#include "package_fixture.hpp"
#include "unit/engine/gpu/engines.hpp"

namespace accord::engine {
namespace {

using accord::testing::HostTensor;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kUnit = 64;  // scales of 4 outputs, 4 x 2 elements, and padding

class Float8Packages : public PackageFixture {
 protected:
  // Packs "w" [4, 6] in units of 2 inputs: ones times the scales 1, 2, 3 and 4. The last scale of unit 1 is `last`.
  void pack(float last) {
    std::string data;
    json hashes = json::array();
    for (int unit = 0; unit < 3; ++unit) {
      std::string block = bytes_of({1.0F, 2.0F, 3.0F, unit == 1 ? last : 4.0F}) + std::string(8, '\x38');
      block.resize(kUnit, '\0');
      hashes.push_back(xxh3_hex(block));
      data += block;
    }
    std::string header = R"({"w":{"dtype":"U8","shape":[3,64],"data_offsets":[0,192]},)"
                         R"("b":{"dtype":"F32","shape":[4],"data_offsets":[192,208]}})";
    header.resize(184, ' ');
    const std::uint64_t size = header.size();
    std::string begin(8, '\0');
    std::memcpy(begin.data(), &size, 8);
    begin += header;
    files_["weights-00001.safetensors"] = begin + data + bytes_of(b_);
    json& file = manifest_["files"][1];
    file["size"] = begin.size() + data.size() + 16;
    file["header_size"] = begin.size();
    file["header_sha256"] = sha256(begin);
    json& w = manifest_["tensors"][0];
    w["packed"] = {{"type", "float8_e4m3fn"}, {"scales", "float32"}, {"error", 0.5}};
    w["offset"] = begin.size();
    w["granule_bytes"] = kUnit;
    w["xxh3"] = hashes;
    manifest_["tensors"][1]["offset"] = begin.size() + data.size();
    seal();
  }

  Result<std::vector<float>> output(const LoadOptions& options) const {
    ACCORD_ASSIGN_OR_RETURN(Engine engine, Engine::load(path_.string(), {}, options));
    ACCORD_RETURN_IF_ERROR(engine.bind());
    ACCORD_ASSIGN_OR_RETURN(EngineContext context, engine.create_context());
    HostTensor x(DType::kFloat32, {1, 6}, {1, 2, 3, 4, 5, 6});
    const TensorView views[] = {x.view()};
    ACCORD_ASSIGN_OR_RETURN(const std::vector<TensorView> outputs, context.run(views));
    return accord::testing::floats_of(outputs[0]);
  }
};

TEST_F(Float8Packages, a_unit_has_scales_followed_by_elements) {
  pack(4.0F);
  const auto read = parse_manifest(manifest_.dump());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  const TensorEntry& tensor = read->tensors[0];
  EXPECT_EQ(tensor.packing->error, 0.5);
  EXPECT_EQ(tensor.unit_bytes(), kUnit);
  EXPECT_EQ(tensor.matrix(0, 3, nullptr).in_unit_stride, static_cast<std::int64_t>(kUnit));
  const Result<std::vector<float>> found = output({});
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, (std::vector<float>{121, 143, 165, 187}));  // (1 + .. + 6) * scale + bias
}

TEST_F(Float8Packages, invalid_descriptions_are_rejected) {
  struct Fault {
    json packed;
    const char* message;
  };
  const Fault faults[] = {
      {{{"type", "float8_e4m3fn"}, {"group", 48}}, "or for each 16, 32, 64 or 128 of its inputs"},
      {{{"type", "float8_e4m3fn"}, {"group", 32}}, "units of 2 inputs are not a multiple of groups of 32"},
      {{{"type", "float8_e4m3fn"}, {"scales", "float16"}}, "one float32 scale for each output"},
      {{{"type", "float8_e4m3fn"}, {"minima", true}}, "and no minima"},
      {{{"type", "float8_e4m3"}}, "did you mean \"float8_e4m3fn\""},
      {{{"type", "float8_e4m3fn"}}, "each of its 3 units has 64"},
  };
  for (const Fault& fault : faults) {
    json manifest = manifest_;
    manifest["tensors"][0]["packed"] = fault.packed;
    manifest["tensors"][0]["offset"] = 128;
    const Status status = parse_manifest(manifest.dump()).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << fault.message;
    EXPECT_THAT(status.message(), HasSubstr(fault.message));
  }
  json manifest = manifest_;
  json& w = manifest["tensors"][0];
  w.erase("sharding");
  w["shape"] = {4, 3, 2};
  w["packed"] = {{"type", "float8_e4m3fn"}, {"groups", 2}};
  EXPECT_THAT(parse_manifest(manifest.dump()).status().message(), HasSubstr("weights of convolutions are not packed"));
}

class Float8OnDevice : public Float8Packages {
 protected:
  Float8OnDevice() {
    device::replace_runtime(DeviceType::kCuda, &accord::testing::HostRuntime::instance());
    device::replace_blas(DeviceType::kCuda, &accord::testing::HostBlas::instance());
  }
  ~Float8OnDevice() override {
    device::replace_blas(DeviceType::kCuda, nullptr);
    device::replace_runtime(DeviceType::kCuda, nullptr);
  }
};

TEST_F(Float8OnDevice, units_of_the_same_outputs_share_their_scales) {
  const LoadOptions on_gpu{.device = accord::testing::kGpu, .outputs = DeviceType::kCpu};
  pack(4.0F);
  const Result<std::vector<float>> found = output(on_gpu);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, (std::vector<float>{121, 143, 165, 187}));
  pack(5.0F);
  const Status status = output(on_gpu).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("tensor \"w\""), HasSubstr("different scales")));
  const Result<std::vector<float>> on_cpu = output({});  // reads each unit by itself
  ASSERT_TRUE(on_cpu.ok());
  EXPECT_EQ((*on_cpu)[3], 194.0F);
}

TEST_F(Float8OnDevice, 8_bit_rows_require_a_device_that_supports_them) {
  pack(4.0F);
  const auto refusal = [&](LoadOptions options, Device device) {
    options.device = device;
    return output(options).status();
  };
  LoadOptions float8, int8;
  float8.activation_dtype = DType::kFloat8E4M3FN;
  int8.activation_dtype = DType::kInt8;
  EXPECT_THAT(refusal(float8, {}).message(), HasSubstr("activation_dtype float8_e4m3fn is for engines on GPUs"));
  EXPECT_EQ(refusal(float8, {}).code(), StatusCode::kUnsupported);
  EXPECT_THAT(refusal(int8, accord::testing::kGpu).message(),
              HasSubstr("activation_dtype int8 is for engines on the CPU"));
  EXPECT_TRUE(refusal(float8, accord::testing::kGpu).ok());
}

}  // namespace
}  // namespace accord::engine
