#pragma once
// A product with packed weights and its expected result: loops in double over values that are decoded here by
// definition.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../every_instruction_set.hpp"
#include "../half_reference.hpp"
#include "../random_floats.hpp"
#include "kernels/linear/pack.hpp"
#include "kernels/linear/panel_kernels.hpp"
#include "kernels/linear/product.hpp"

namespace accord::kernels {

inline const PackedFormat kInt8{WeightType::kInt8, 32};
inline const PackedFormat kInt4WithMinima{WeightType::kInt4, 32, Minimum::kPerGroup};
inline const PackedFormat kInt5{WeightType::kInt5, 32};
/// GGUF's Q4_K, Q5_K and Q6_K.
inline const PackedFormat kSuperInt4{WeightType::kInt4, 32, Minimum::kPerGroup, DType::kInt8};
inline const PackedFormat kSuperInt5{WeightType::kInt5, 32, Minimum::kPerGroup, DType::kInt8};
inline const PackedFormat kSuperInt6{WeightType::kInt6, 16, Minimum::kNone, DType::kInt8};
/// The quantiles of a normal distribution that bitsandbytes' nf4 uses, and MXFP4's integers.
inline constexpr std::array<float, 16> kQuantiles = {
    -1.0F,      -0.6961928F, -0.5250731F, -0.3949175F, -0.2844414F, -0.1847734F, -0.09105004F, 0.0F,
    0.0795803F, 0.1609302F,  0.2461123F,  0.3379152F,  0.4407098F,  0.5626170F,  0.7229568F,   1.0F};
inline constexpr std::array<float, 16> kSteps = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline const PackedFormat kTableOfQuantiles{WeightType::kTable4, 64, Minimum::kNone, DType::kFloat32, kQuantiles};
inline const PackedFormat kTableOfSteps{WeightType::kTable4, 32, Minimum::kNone, DType::kFloat16, kSteps};

/// Every instruction set, with and without the dot instructions that some processors have in addition.
class EveryPanelKernel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const bool plain = name.ends_with("_plain");
    ASSERT_TRUE(use_instruction_set(plain ? name.substr(0, name.size() - 6) : name).ok());
    use_dot_instructions(plain ? DotInstructions::kNever : DotInstructions::kIfPresent);
  }
  void TearDown() override {
    ASSERT_TRUE(use_instruction_set("").ok());
    use_dot_instructions(DotInstructions::kIfPresent);
  }
};
inline std::vector<std::string> panel_kernel_names() {
  std::vector<std::string> names;
  for (const std::string& set : instruction_sets()) {
    names.push_back(set);
    if (set == "AVX3" || set == "AVX2") names.push_back(set + "_plain");
  }
  return names;
}
#define ACCORD_WITH_EVERY_PANEL_KERNEL(Suite)                                                   \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::ValuesIn(::accord::kernels::panel_kernel_names()), \
                           [](const testing::TestParamInfo<std::string>& instance) { return instance.param; })

/// Bytes aligned to 64, of which AddressSanitizer knows the end.
class AlignedVector {
 public:
  explicit AlignedVector(std::size_t size)
      : bytes_(static_cast<std::byte*>(::operator new(size, kLine))), size_(size) {}
  std::byte* data() { return bytes_.get(); }
  std::span<std::byte> span() { return {data(), size_}; }

 private:
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kLine); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_;
};

inline double as_type(double value, DType type) {
  if (type == DType::kBFloat16) {
    return HalfReference::bfloat16().decode(HalfReference::bfloat16().encode(value));
  }
  return type == DType::kFloat16 ? HalfReference::float16().decode(HalfReference::float16().encode(value)) : value;
}

/// Returns values stored as a type of 16 or 32 bits.
inline std::vector<std::byte> stored(const std::vector<float>& values, DType type) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = static_cast<double>(values[i]);
    const std::uint16_t half =
        type == DType::kBFloat16 ? HalfReference::bfloat16().encode(value) : HalfReference::float16().encode(value);
    const void* const from = type == DType::kFloat32 ? static_cast<const void*>(&values[i]) : &half;
    std::memcpy(bytes.data() + i * size_of(type), from, size_of(type));
  }
  return bytes;
}
inline double element(const std::byte* from, std::size_t index, DType type) {
  if (type == DType::kFloat32) {
    float value;
    std::memcpy(&value, from + index * 4, 4);
    return static_cast<double>(value);
  }
  std::uint16_t bits;
  std::memcpy(&bits, from + index * 2, 2);
  return type == DType::kBFloat16 ? HalfReference::bfloat16().decode(bits) : HalfReference::float16().decode(bits);
}

/// A weight, with the values of its packed form.
struct TestWeight {
  PackedFormat format;
  std::int64_t out, in;
  std::vector<double> scaled;  // [out][in], without minima
  std::vector<double> minima;  // [out][in], 0 if there are none
  std::vector<double> pairs;   // like `scaled`, with the numbers of a table rounded to bfloat16
  AlignedVector packed;
  PackedMatrix matrix;

  TestWeight(const PackedFormat& f, std::int64_t o, std::int64_t i, unsigned seed)
      : format(f), out(o), in(i), packed(packed_bytes(f, o, i)) {
    matrix = packed_matrix(f, o, i, packed.data());
    const std::size_t count = static_cast<std::size_t>(o * i);
    scaled.resize(count);
    minima.resize(count);
    pairs.resize(count);
    f.quantized() ? fill_codes(seed) : fill_floats(random_floats(count, seed));
  }
  /// Returns the scaled weights as the arithmetic sees them.
  const std::vector<double>& seen(Arithmetic arithmetic) const {
    return format.type == WeightType::kTable4 && arithmetic == Arithmetic::kBFloat16 ? pairs : scaled;
  }
  void fill_floats(const std::vector<float>& values) {
    const DType type = format.type == WeightType::kFloat32    ? DType::kFloat32
                       : format.type == WeightType::kBFloat16 ? DType::kBFloat16
                                                              : DType::kFloat16;
    for (std::size_t i = 0; i < values.size(); ++i) scaled[i] = as_type(static_cast<double>(values[i]), type);
    WeightSource source;
    source.data = values.data();
    source.out = out;
    source.in = source.out_stride = in;
    ASSERT_TRUE(pack(source, format, packed.span()).ok());
  }

 private:
  void fill_codes(unsigned seed) {
    std::mt19937 random(seed);
    const auto integer = [&random] { return static_cast<float>(static_cast<int>(random() % 255) - 127); };
    const auto columns = static_cast<std::size_t>(in), group = static_cast<std::size_t>(format.group);
    const std::size_t groups = (columns + group - 1) / group, supers = (columns + 255) / 256;
    const auto count = static_cast<std::size_t>(out) * groups, super_count = static_cast<std::size_t>(out) * supers;
    const bool has_minima = format.minimum == Minimum::kPerGroup, has_supers = format.scale_type == DType::kInt8;
    std::vector<std::uint8_t> codes(scaled.size());
    std::vector<float> scales(count), lows(count), super_scales(super_count), super_lows(super_count);
    for (std::size_t i = 0; i < count; ++i) {  // exact in float16
      scales[i] = integer() / (has_supers ? 1.0F : 4096.0F);
      lows[i] = integer() / (has_supers ? 1.0F : 512.0F);
    }
    for (std::size_t i = 0; i < super_count; ++i) {
      super_scales[i] = integer() / 1048576.0F;
      super_lows[i] = integer() / 65536.0F;
    }
    for (std::size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<std::uint8_t>(random() % static_cast<unsigned>(format.codes()));
      const std::size_t row = i / columns, column = i % columns;
      const std::size_t of_group = row * groups + column / group, of_super = row * supers + column / 256;
      const double unit = has_supers ? static_cast<double>(super_scales[of_super]) : 1.0;
      const double low_unit = has_supers ? static_cast<double>(super_lows[of_super]) : 1.0;
      const int zero = has_minima ? 0 : 1 << (format.bits() - 1);
      const bool has_table = format.type == WeightType::kTable4;
      const double number = has_table ? static_cast<double>(format.table[codes[i]]) : codes[i] - zero;
      scaled[i] = unit * static_cast<double>(scales[of_group]) * number;
      pairs[i] = unit * static_cast<double>(scales[of_group]) * as_type(number, DType::kBFloat16);
      minima[i] = has_minima ? low_unit * static_cast<double>(lows[of_group]) : 0.0;
    }
    const auto if_present = [](const std::vector<float>& values, bool present) {
      return present ? values.data() : nullptr;
    };
    const QuantizedSource source{out,
                                 in,
                                 codes.data(),
                                 scales.data(),
                                 if_present(lows, has_minima),
                                 if_present(super_scales, has_supers),
                                 if_present(super_lows, has_supers && has_minima)};
    ASSERT_TRUE(pack(source, format, packed.span()).ok());
  }
};

/// Returns one row's inputs as the arithmetic sees them with weights of that format.
inline std::vector<double> seen_inputs(const std::vector<double>& x, Arithmetic arithmetic,
                                       const PackedFormat& format) {
  std::vector<double> seen(x);
  if (arithmetic == Arithmetic::kFloat32) return seen;
  const bool integers = format.has_integers() && !panel_kernels().has_bfloat16;
  if (arithmetic == Arithmetic::kBFloat16 && !integers) {
    for (double& value : seen) value = as_type(value, DType::kBFloat16);
    return seen;
  }
  const float most = arithmetic == Arithmetic::kInt8 ? 127.0F : 32767.0F;
  for (std::size_t first = 0; first < x.size(); first += static_cast<std::size_t>(format.group)) {
    const std::size_t last = std::min(x.size(), first + static_cast<std::size_t>(format.group));
    float max = 0.0F;
    for (std::size_t i = first; i < last; ++i) max = std::max(max, std::fabs(static_cast<float>(x[i])));
    for (std::size_t i = first; i < last; ++i) {  // steps in fp32, as a tie may round either way
      const float steps = max == 0.0F ? 0.0F : static_cast<float>(x[i]) * (most / max);
      seen[i] = std::nearbyint(static_cast<double>(steps)) * static_cast<double>(max) / static_cast<double>(most);
    }
  }
  return seen;
}

/// Prepares `x` and runs a product on this thread, cut at the given panels.
inline Status run(const ProductCall& given, const ConstRows& x, Arithmetic arithmetic, std::int64_t rows,
                  const std::vector<std::int64_t>& cuts = {}) {
  const Result<RowsLayout> layout = rows_layout(*given.weights, arithmetic, rows);
  if (!layout.ok()) return layout.status();
  AlignedVector prepared(layout->bytes()), scratch(kProductScratch);
  prepare_rows(*layout, x, 0, rows, prepared.data());
  ProductCall call = given;
  call.layout = &*layout;
  call.x = prepared.data();
  ProductShare share = full_share(call);
  const std::int64_t last = share.last_panel;
  for (const std::int64_t cut : cuts) {
    share.last_panel = cut;
    ACCORD_RETURN_IF_ERROR(product(call, share, scratch.span()));
    share.first_panel = cut;
  }
  share.last_panel = last;
  return product(call, share, scratch.span());
}

}  // namespace accord::kernels
