#pragma once
// Kernels that select elements by index. An id that is out of range is reported, and zeros are written in place of
// its element.

#include "engine/gpu/kernels/operands.hpp"
#include "engine/gpu/kernels/words.hpp"

namespace accord::engine {

/// Copies one element of 1, 2, 4 or 8 bytes, or of any number byte by byte; zeros if `from` is null.
ACCORD_ON_DEVICE inline void copy_element(std::byte* to, const std::byte* from, std::int64_t bytes) {
  const auto copy = [&]<typename T>(T) {
    *reinterpret_cast<T*>(to) = from == nullptr ? T{} : *reinterpret_cast<const T*>(from);
  };
  switch (bytes) {
    case 1: return copy(std::uint8_t{});
    case 2: return copy(std::uint16_t{});
    case 4: return copy(std::uint32_t{});
    case 8: return copy(std::uint64_t{});
    default:
      for (std::int64_t i = 0; i < bytes; ++i) to[i] = from == nullptr ? std::byte{} : from[i];
  }
}

/// Row i of y is row ids[i] - first_row of the table, or zeros if another rank has that row. Each block copies one
/// row.
struct GatherRows {
  static constexpr const char* kName = "engine_gather_rows";
  static constexpr int kThreads = 128;
  static constexpr bool kStartsEarly = true;
  const void* ids = nullptr;
  DType id_dtype = DType::kInt64;
  std::int64_t count = 0;
  const std::byte* table = nullptr;
  std::int64_t table_rows = 0, first_row = 0, total_rows = 0;
  std::int64_t row_bytes = 0, table_row_stride = 0;  ///< in bytes; rows of y have no gaps
  std::byte* y = nullptr;
  FaultReport report;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const auto any = reinterpret_cast<std::uintptr_t>(table) | reinterpret_cast<std::uintptr_t>(y) |
                     static_cast<std::uintptr_t>(row_bytes | table_row_stride);
    for (std::int64_t i = block.block(); i < count; i += block.blocks()) {
      const std::int64_t id = device::load_integer(ids, id_dtype, i);
      const bool bad = id < 0 || id >= total_rows;
      if (bad && block.thread() == 0) report.report(block, Fault::kId, id, i, total_rows);
      const std::int64_t row = id - first_row;
      const bool here = !bad && row >= 0 && row < table_rows;
      const std::byte* const from = table + (here ? row * table_row_stride : 0);
      std::byte* const to = y + i * row_bytes;
      if (any % sizeof(Words) == 0) {
        for (std::int64_t at = block.thread(); at < row_bytes / static_cast<std::int64_t>(sizeof(Words));
             at += block.threads())
          reinterpret_cast<Words*>(to)[at] = here ? reinterpret_cast<const Words*>(from)[at] : Words{};
      } else {
        for (std::int64_t at = block.thread(); at < row_bytes; at += block.threads())
          to[at] = here ? from[at] : std::byte{};
      }
    }
  }
};

/// y [before, places, after] of contiguous x [before, indexed dimensions.., after]: the ids at place p select the
/// element of x that place p receives.
struct Pick {
  static constexpr const char* kName = "engine_pick";
  static constexpr int kThreads = 256;
  static constexpr int kMaxIds = 4;
  std::int64_t count = 0;  ///< elements of y
  std::int64_t places = 0, after = 0;
  int indexed = 0;
  bool counts_back = true;           ///< whether ids below 0 count from the end
  std::int64_t sizes[kMaxIds] = {};  ///< of the indexed dimensions
  Shape picked;                      ///< of the places
  Operand ids[kMaxIds];
  const std::byte* x = nullptr;
  std::byte* y = nullptr;
  std::int64_t element = 0;  ///< bytes
  FaultReport report;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    std::int64_t block_elements = after;
    for (int i = 0; i < indexed; ++i) block_elements *= sizes[i];
    for (std::size_t at = block.first(); at < static_cast<std::size_t>(count); at += block.stride()) {
      const auto index = static_cast<std::int64_t>(at);
      std::int64_t before = index;
      const std::int64_t behind = take_last(before, after), place = take_last(before, places);
      const Offsets<kMaxIds> id_at = offsets_at(picked, ids, place);
      std::int64_t offset = 0;
      bool bad = false;
      for (int i = 0; i < indexed; ++i) {
        const std::int64_t id = device::load_integer(ids[i].data, ids[i].dtype, id_at.of[i]);
        if (id < (counts_back ? -sizes[i] : 0) || id >= sizes[i]) {
          if (!bad) report.report(block, counts_back ? Fault::kIndex : Fault::kId, id, place, sizes[i]);
          bad = true;
        }
        offset = offset * sizes[i] + (id < 0 ? id + sizes[i] : id);
      }
      const std::byte* const from = x + (before * block_elements + (bad ? 0 : offset) * after + behind) * element;
      copy_element(y + index * element, bad ? nullptr : from, element);
    }
  }
};

/// y[.., i, ..] = x[.., index[.., i, ..], ..] along a dimension of x with `size` elements that are `stride` apart.
/// `operands`: y, x (with a stride of 0 in that dimension), index.
struct GatherElements {
  static constexpr const char* kName = "engine_gather_elements";
  static constexpr int kThreads = 256;
  std::int64_t count = 0;
  std::int64_t size = 0, stride = 0;
  Shape shape;
  Operand operands[3];
  std::int64_t element = 0;  ///< bytes of y and x
  FaultReport report;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::size_t at = block.first(); at < static_cast<std::size_t>(count); at += block.stride()) {
      const auto index = static_cast<std::int64_t>(at);
      const Offsets<3> offsets = offsets_at(shape, operands, index);
      const std::int64_t id = device::load_integer(operands[2].data, operands[2].dtype, offsets.of[2]);
      const bool bad = id < 0 || id >= size;
      if (bad) report.report(block, Fault::kId, id, index, size);
      const auto* const from =
          static_cast<const std::byte*>(operands[1].data) + (offsets.of[1] + (bad ? 0 : id * stride)) * element;
      auto* const to = static_cast<std::byte*>(operands[0].data) + offsets.of[0] * element;
      copy_element(to, bad ? nullptr : from, element);
    }
  }
};

}  // namespace accord::engine
