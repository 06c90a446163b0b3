#include "engine/package/granules.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace accord::engine {
namespace {

// Each row has a piece of every unit. The pieces of the requested units are adjacent in a row: they are read at once
// and distributed to their units.
Status read_from_rows(const PackageFile& file, const TensorEntry& tensor, std::uint64_t first, std::uint64_t count,
                      std::span<std::byte> destination) {
  const auto dim = static_cast<std::size_t>(tensor.sharding->dim);
  std::uint64_t rows = 1, element = size_of(tensor.dtype);
  for (std::size_t i = 0; i < dim; ++i) rows *= static_cast<std::uint64_t>(tensor.shape[i]);
  for (std::size_t i = dim + 1; i < tensor.shape.size(); ++i) element *= static_cast<std::uint64_t>(tensor.shape[i]);
  const std::uint64_t row = static_cast<std::uint64_t>(tensor.shape[dim]) * element;
  const std::uint64_t unit = static_cast<std::uint64_t>(tensor.sharding->unit) * element;
  const std::uint64_t begin = first * unit, end = std::min((first + count) * unit, row);
  std::vector<std::byte> piece(end - begin);
  for (std::uint64_t i = 0; i < rows; ++i) {
    ACCORD_RETURN_IF_ERROR(file.read(tensor.offset + i * row + begin, piece));
    std::byte* unit_begin = destination.data();
    for (std::uint64_t at = 0; at < piece.size(); at += unit) {
      const std::uint64_t width = std::min(unit, piece.size() - at);
      std::memcpy(unit_begin + i * width, piece.data() + at, width);
      unit_begin += rows * width;
    }
  }
  return Status();
}

}  // namespace

Result<PackageFile> open_weight_file(const PackageFolder& folder, const WeightFileEntry& entry) {
  return entry.reference ? folder.outside(*entry.reference, entry.bytes) : folder.file(entry.name, entry.bytes);
}

Status read_granules(const PackageFile& file, const WeightFileEntry& entry, const TensorEntry& tensor,
                     std::uint64_t first, std::uint64_t count, std::span<std::byte> destination) {
  if (entry.reference && tensor.sharding && tensor.sharding->dim > 0) {
    return read_from_rows(file, tensor, first, count, destination);
  }
  return file.read(tensor.offset + first * tensor.granule_bytes, destination);
}

}  // namespace accord::engine
