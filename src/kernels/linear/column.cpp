// Rows are converted in blocks on the stack. Words are assembled and written one by one, one panel width apart.

#include "kernels/linear/column.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::kernels {

namespace {

constexpr std::int64_t kBlock = 256;

float read_scale(const std::byte* from, std::int64_t index, DType type) {
  if (type == DType::kInt8) return static_cast<float>(static_cast<std::int8_t>(from[index]));
  float value = 0.0F;
  convert_between(type, from + index * static_cast<std::int64_t>(size_of(type)), DType::kFloat32, &value, 1);
  return value;
}

void write_scale(std::byte* to, std::int64_t index, float value, DType type) {
  if (type == DType::kInt8) {
    to[index] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(std::nearbyint(value), -128.0F, 127.0F)));
    return;
  }
  convert_between(DType::kFloat32, &value, type, to + index * static_cast<std::int64_t>(size_of(type)), 1);
}

// The lowest bit of each input in its packed word.
constexpr int kShiftOfInt8[4] = {0, 16, 8, 24};
constexpr int kShiftOfInt4[8] = {0, 16, 4, 20, 8, 24, 12, 28};

// Calls visit(input, word, shift, first, mask) for the bits of each of a group's codes: bits (code >> first) & mask
// are in packed word `word` of the group from bit `shift` up. Codes of 5 and 6 bits are in two words.
template <typename Visit>
void for_each_bits(const PackedFormat& format, Visit visit) {
  const int high = format.bits() - 4;
  for (int input = 0; input < format.group; ++input) {
    if (format.type == WeightType::kInt8) {
      visit(input, input / 4, kShiftOfInt8[input % 4], 0, 0xFFU);
      continue;
    }
    const int word = input / 8, shift = kShiftOfInt4[input % 8];
    if (high == 0) {
      visit(input, word, shift, 0, 0xFU);
      continue;
    }
    const int words = 4 / high, first = word / words * (words + 1), within = word % words;
    visit(input, first + within, shift, 0, 0xFU);
    visit(input, first + words, shift / 8 * 8 + high * (2 * within + shift % 8 / 4), 4, (1U << high) - 1);
  }
}

constexpr int kMaxWords = kMaxGroup / 4;

}  // namespace

float rounded_scale(float value, DType type) {
  std::byte rounded[sizeof(float)];
  write_scale(rounded, 0, value, type);
  return read_scale(rounded, 0, type);
}

Column::Column(const PackedFormat& format, std::byte* panel, std::int64_t in, std::int64_t width, std::int64_t column)
    : format_(format),
      panel_(panel),
      width_(width),
      column_(column),
      super_bytes_(static_cast<std::int64_t>(super_scale_bytes(format, width))),
      group_bytes_(static_cast<std::int64_t>(input_bytes(format, format.group, width))),
      scale_bytes_(static_cast<std::int64_t>(scale_bytes(format, width))),
      groups_(panel + format.super_groups_of(in) * super_bytes_) {}

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
  std::byte* const record = groups_ + group * group_bytes_;
  write_scale(record, column_, scale, format_.scale_type);
  if (format_.minimum == Minimum::kPerGroup) write_scale(record, width_ + column_, minimum, format_.scale_type);
  std::uint32_t words[kMaxWords] = {};
  for_each_bits(format_, [&](int input, int word, int shift, int first, std::uint32_t mask) {
    words[word] |= (static_cast<std::uint32_t>(codes[input]) >> first & mask) << shift;
  });
  for (int word = 0; word < format_.group * format_.bits() / 32; ++word) {
    std::memcpy(at(record + scale_bytes_, word), words + word, sizeof(words[word]));
  }
}

void Column::write_super_group(std::int64_t super_group, float scale, float minimum) const {
  std::byte* const record = panel_ + super_group * super_bytes_;
  write_scale(record, column_, scale, DType::kFloat16);
  if (format_.minimum == Minimum::kPerGroup) write_scale(record, width_ + column_, minimum, DType::kFloat16);
}

float Column::scale_of_group(std::int64_t group, std::int64_t index) const {
  const float scale = read_scale(groups_ + group * group_bytes_, index * width_ + column_, format_.scale_type);
  if (!format_.has_super_groups()) return scale;
  const std::byte* const record = panel_ + group * format_.group / kSuperGroup * super_bytes_;
  return scale * read_scale(record, index * width_ + column_, DType::kFloat16);
}

void Column::read_group(std::int64_t group, float* values) const {
  const float scale = scale_of_group(group, 0);
  const bool has_minimum = format_.minimum == Minimum::kPerGroup;
  const float minimum = has_minimum ? scale_of_group(group, 1) : 0.0F;
  std::uint32_t words[kMaxWords] = {};
  for (int word = 0; word < format_.group * format_.bits() / 32; ++word) {
    std::memcpy(words + word, at(groups_ + group * group_bytes_ + scale_bytes_, word), sizeof(words[word]));
  }
  std::uint32_t codes[kMaxGroup] = {};
  for_each_bits(format_, [&](int input, int word, int shift, int first, std::uint32_t mask) {
    codes[input] |= (words[word] >> shift & mask) << first;
  });
  for (int input = 0; input < format_.group; ++input) {
    const float number = format_.type == WeightType::kTable4
                             ? format_.table[codes[input]]
                             : static_cast<float>(static_cast<int>(codes[input]) - format_.zero());
    const float value = scale * number;
    values[input] = has_minimum ? value + minimum : value;
  }
}

}  // namespace accord::kernels
