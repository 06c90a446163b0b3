#pragma once
// This rank's memory in the windows of a group, and the places of a call's buffers in it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "accord/buffer.hpp"
#include "exec/place_word.hpp"
#include "exec/request_record.hpp"
#include "plan/collective.hpp"

namespace accord::comm {

/// This rank's memory in a window that all ranks can reach.
struct LocalRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  int window = 0;  ///< its number
};

/// `ranges`: by address. kNoPlace if not all `bytes` are in one of them. Cost: a binary search.
inline exec::PlaceWord place_of(const std::vector<LocalRange>& ranges, const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto above = [](std::uintptr_t address, const LocalRange& range) { return address < range.begin; };
  auto range = std::upper_bound(ranges.begin(), ranges.end(), begin, above);
  if (range == ranges.begin()) return exec::kNoPlace;
  --range;
  if (begin > range->end || bytes > range->end - begin) return exec::kNoPlace;
  return exec::place_word(range->window, begin - range->begin);
}

/// Bytes of a rank's buffers in a call whose parts have equal counts; 0 for a buffer that it does not have.
struct BufferBytes {
  std::size_t input = 0;
  std::size_t output = 0;
};
inline BufferBytes buffer_bytes_of(const exec::RequestRecord& record, Rank rank, int size) {
  const plan::CollectiveTraits& traits = plan::traits_of(record.collective);
  const std::size_t part = record.count * size_of(record.dtype);
  const auto bytes_of = [&](const plan::BufferRole& role) -> std::size_t {
    if (!plan::holds(role, rank, record.root)) return 0;
    return role.divided ? part * static_cast<std::size_t>(size) : part;
  };
  return {bytes_of(traits.input), bytes_of(traits.output)};
}

}  // namespace accord::comm
