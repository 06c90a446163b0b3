// The loop of all elementwise kernels. If every operand's row is contiguous, the kernel gets whole rows. Otherwise
// the row is split into blocks of kBlock elements: each non-contiguous input is gathered into a block (once per row
// if one element repeats), and a non-contiguous result is scattered from one. Narrow floats are widened, from that
// block or directly from the operand, into a second block.

#include "kernels/elementwise/row_loop.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::kernels {

namespace {

constexpr std::int64_t kBlock = 512;
constexpr std::size_t kMaxElementBytes = 8;
constexpr std::size_t kMaxInputs = 3;
struct alignas(64) Block {
  std::byte bytes[kBlock * kMaxElementBytes];
};

template <typename Word>
void gather_words(const void* from, std::int64_t stride, void* to, std::int64_t count) {
  const Word* const source = static_cast<const Word*>(from);
  Word* const destination = static_cast<Word*>(to);
  for (std::int64_t i = 0; i < count; ++i) destination[i] = source[i * stride];
}
template <typename Word>
void scatter_words(const void* from, void* to, std::int64_t stride, std::int64_t count) {
  const Word* const source = static_cast<const Word*>(from);
  Word* const destination = static_cast<Word*>(to);
  for (std::int64_t i = 0; i < count; ++i) destination[i * stride] = source[i];
}

void gather(std::size_t element, const void* from, std::int64_t stride, void* to, std::int64_t count) {
  switch (element) {
    case 1: return gather_words<std::uint8_t>(from, stride, to, count);
    case 2: return gather_words<std::uint16_t>(from, stride, to, count);
    case 4: return gather_words<std::uint32_t>(from, stride, to, count);
    default: return gather_words<std::uint64_t>(from, stride, to, count);
  }
}
void scatter(std::size_t element, const void* from, void* to, std::int64_t stride, std::int64_t count) {
  switch (element) {
    case 1: return scatter_words<std::uint8_t>(from, to, stride, count);
    case 2: return scatter_words<std::uint16_t>(from, to, stride, count);
    case 4: return scatter_words<std::uint32_t>(from, to, stride, count);
    default: return scatter_words<std::uint64_t>(from, to, stride, count);
  }
}

}  // namespace

bool run_rows(RowKernel kernel, std::span<const ConstView> inputs, const View& output, const RowParameters& parameters,
              NarrowFloats narrow) {
  const std::size_t out = kMaxInputs;  // index of the output operand; unused inputs take the output's layout
  std::array<const Layout*, kMaxInputs + 1> layouts;
  layouts.fill(&output.layout);
  for (std::size_t i = 0; i < inputs.size(); ++i) layouts[i] = &inputs[i].layout;
  const RowLoop<kMaxInputs + 1> loop(layouts);

  std::array<RowKernel, kMaxInputs + 1> conversion{};
  std::array<std::size_t, kMaxInputs + 1> element{};
  bool contiguous = loop.row_size() == 1 || loop.row_stride(out) == 1;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    element[i] = size_of(inputs[i].dtype);
    if (narrow == NarrowFloats::kAsFloat32 && is_narrow_float(inputs[i].dtype)) {
      conversion[i] = convert_row_kernel(inputs[i].dtype, DType::kFloat32);
    }
    contiguous = contiguous && conversion[i] == nullptr && (loop.row_size() == 1 || loop.row_stride(i) == 1);
  }
  element[out] = size_of(output.dtype);
  if (narrow == NarrowFloats::kAsFloat32 && is_narrow_float(output.dtype)) {
    conversion[out] = convert_row_kernel(DType::kFloat32, output.dtype);
    contiguous = false;
  }
  const std::int64_t step = contiguous ? std::max<std::int64_t>(loop.row_size(), 1) : kBlock;

  std::array<Block, kMaxInputs + 1> blocks;
  std::array<Block, kMaxInputs + 1> wide;
  return loop.for_each_row([&](const std::array<std::int64_t, kMaxInputs + 1>& offsets) {
    for (std::int64_t first = 0; first < loop.row_size(); first += step) {
      const std::int64_t count = std::min(step, loop.row_size() - first);
      const void* pointers[kMaxInputs] = {};
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::int64_t stride = loop.row_stride(i);
        const std::byte* const from = static_cast<const std::byte*>(inputs[i].data) +
                                      (offsets[i] + first * stride) * static_cast<std::int64_t>(element[i]);
        const bool direct = contiguous || stride == 1;
        pointers[i] = direct ? from : blocks[i].bytes;
        if (stride == 0 && first > 0) {
          if (conversion[i] != nullptr) pointers[i] = wide[i].bytes;
          continue;
        }
        if (!direct) gather(element[i], from, stride, blocks[i].bytes, count);
        if (conversion[i] == nullptr) continue;
        conversion[i](&pointers[i], wide[i].bytes, count, {});
        pointers[i] = wide[i].bytes;
      }
      const std::int64_t stride = loop.row_stride(out);
      std::byte* const to = static_cast<std::byte*>(output.data) +
                            (offsets[out] + first * stride) * static_cast<std::int64_t>(element[out]);
      const bool direct = contiguous || stride == 1;
      std::byte* const result = direct ? to : blocks[out].bytes;
      if (!kernel(pointers, conversion[out] != nullptr ? wide[out].bytes : result, count, parameters)) return false;
      if (conversion[out] != nullptr) {
        const void* const computed = wide[out].bytes;
        conversion[out](&computed, result, count, {});
      }
      if (!direct) scatter(element[out], blocks[out].bytes, to, stride, count);
    }
    return true;
  });
}

}  // namespace accord::kernels
