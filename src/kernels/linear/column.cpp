// Rows are converted in blocks on the stack. Words are assembled and written one by one, one panel width apart.

#include "kernels/linear/column.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::kernels {

namespace {

constexpr std::int64_t kBlock = 256;

float read_scale(const std::byte* from, std::int64_t index, DType type) {
  float value = 0.0F;
  convert_between(type, from + index * static_cast<std::int64_t>(size_of(type)), DType::kFloat32, &value, 1);
  return value;
}

void write_scale(std::byte* to, std::int64_t index, float value, DType type) {
  convert_between(DType::kFloat32, &value, type, to + index * static_cast<std::int64_t>(size_of(type)), 1);
}

// The lowest bit of each input in its packed word.
constexpr int kShiftOfInt8[4] = {0, 16, 8, 24};
constexpr int kShiftOfInt4[8] = {0, 16, 4, 20, 8, 24, 12, 28};

}  // namespace

float rounded_scale(float value, DType type) {
  std::byte rounded[sizeof(float)];
  write_scale(rounded, 0, value, type);
  return read_scale(rounded, 0, type);
}

Column::Column(const PackedFormat& format, std::byte* panel, std::int64_t width, std::int64_t column)
    : format_(format),
      panel_(panel),
      width_(width),
      column_(column),
      group_bytes_(static_cast<std::int64_t>(panel_bytes(format, format.group, width))),
      scale_bytes_(static_cast<std::int64_t>(scale_bytes(format, width))) {}

void Column::write_floats(const float* values, std::int64_t count) const {
  if (format_.type == WeightType::kFloat32) {
    for (std::int64_t i = 0; i < count; ++i) std::memcpy(at(panel_, i), values + i, 4);
    return;
  }
  const bool pairs = format_.type == WeightType::kBFloat16;
  std::uint16_t halves[kBlock];
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t block = std::min(kBlock, count - first);
    convert_between(DType::kFloat32, values + first, pairs ? DType::kBFloat16 : DType::kFloat16, halves, block);
    for (std::int64_t i = 0; i < block; i += pairs ? 2 : 1) {
      std::byte* const to = pairs ? at(panel_, (first + i) / 2) : panel_ + ((first + i) * width_ + column_) * 2;
      std::memcpy(to, halves + i, pairs ? 4 : 2);
    }
  }
}

void Column::read_floats(float* values, std::int64_t count) const {
  if (format_.type == WeightType::kFloat32) {
    for (std::int64_t i = 0; i < count; ++i) std::memcpy(values + i, at(panel_, i), 4);
    return;
  }
  const bool pairs = format_.type == WeightType::kBFloat16;
  std::uint16_t halves[kBlock];
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t block = std::min(kBlock, count - first);
    for (std::int64_t i = 0; i < block; i += pairs ? 2 : 1) {
      const std::byte* const from = pairs ? at(panel_, (first + i) / 2) : panel_ + ((first + i) * width_ + column_) * 2;
      std::memcpy(halves + i, from, pairs ? 4 : 2);
    }
    convert_between(pairs ? DType::kBFloat16 : DType::kFloat16, halves, DType::kFloat32, values + first, block);
  }
}

void Column::write_group(std::int64_t group, float scale, float minimum, const std::uint8_t* codes) const {
  std::byte* const record = panel_ + group * group_bytes_;
  write_scale(record, column_, scale, format_.scale_type);
  if (format_.minimum == Minimum::kPerGroup) write_scale(record, width_ + column_, minimum, format_.scale_type);
  const bool bytes = format_.type == WeightType::kInt8;
  const int per_word = bytes ? 4 : 8;
  const int* const shifts = bytes ? kShiftOfInt8 : kShiftOfInt4;
  for (int word = 0; word < format_.group / per_word; ++word) {
    std::uint32_t bits = 0;
    for (int i = 0; i < per_word; ++i) bits |= static_cast<std::uint32_t>(codes[word * per_word + i]) << shifts[i];
    std::memcpy(at(record + scale_bytes_, word), &bits, sizeof(bits));
  }
}

void Column::read_group(std::int64_t group, float* values) const {
  std::byte* const record = panel_ + group * group_bytes_;
  const float scale = read_scale(record, column_, format_.scale_type);
  const bool has_minimum = format_.minimum == Minimum::kPerGroup;
  const float minimum = has_minimum ? read_scale(record, width_ + column_, format_.scale_type) : 0.0F;
  const bool bytes = format_.type == WeightType::kInt8;
  const int per_word = bytes ? 4 : 8;
  const int* const shifts = bytes ? kShiftOfInt8 : kShiftOfInt4;
  const std::uint32_t mask = bytes ? 0xFF : 0xF;
  for (int word = 0; word < format_.group / per_word; ++word) {
    std::uint32_t bits;
    std::memcpy(&bits, at(record + scale_bytes_, word), sizeof(bits));
    for (int i = 0; i < per_word; ++i) {
      const int code = static_cast<int>(bits >> shifts[i] & mask);
      const float value = scale * static_cast<float>(code - format_.zero());
      values[word * per_word + i] = has_minimum ? value + minimum : value;
    }
  }
}

}  // namespace accord::kernels
