#include "engine/program/row_major_reader.hpp"

#include <algorithm>
#include <cstring>

namespace accord::engine {
namespace {

// `units` holds blocks [outer, unit * inner bytes] one after the other; the last one may be narrower. `destination`
// gets rows [outer, all units side by side].
void interleave(std::span<const std::byte> units, std::size_t outer, std::size_t unit_row, std::size_t row,
                std::byte* destination) {
  std::size_t column = 0;
  const std::byte* source = units.data();
  while (column < row) {
    const std::size_t width = std::min(unit_row, row - column);
    for (std::size_t i = 0; i < outer; ++i) {
      std::memcpy(destination + i * row + column, source, width);
      source += width;
    }
    column += width;
  }
}

}  // namespace

Result<std::span<std::byte>> Staging::of(std::size_t bytes) {
  if (bytes > region_.size()) {
    region_ = Region();
    ACCORD_ASSIGN_OR_RETURN(region_, Region::allocate(bytes, "reading weights"));
  }
  return region_.bytes().first(bytes);
}

std::size_t part_bytes(const TensorEntry& entry, const TensorPart& part) {
  return entry.granule_range_bytes(part.first_granule, part.granules);
}

Status read_row_major(Package& package, const TensorEntry& entry, const TensorPart& part, Staging& units,
                      std::span<std::byte> rows) {
  if (!entry.sharding || entry.sharding->dim == 0) {
    return package.read_granules(entry, part.first_granule, part.granules, rows);
  }
  ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> staged, units.of(rows.size()));
  ACCORD_RETURN_IF_ERROR(package.read_granules(entry, part.first_granule, part.granules, staged));
  const auto dim = static_cast<std::size_t>(entry.sharding->dim);
  std::size_t outer = 1;
  for (std::size_t i = 0; i < dim; ++i) outer *= static_cast<std::size_t>(part.shape[i]);
  std::size_t element = size_of(entry.dtype);
  for (std::size_t i = dim + 1; i < part.shape.size(); ++i) element *= static_cast<std::size_t>(part.shape[i]);
  interleave(staged, outer, static_cast<std::size_t>(entry.sharding->unit) * element,
             static_cast<std::size_t>(part.shape[dim]) * element, rows.data());
  return Status();
}

}  // namespace accord::engine
