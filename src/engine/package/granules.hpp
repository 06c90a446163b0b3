#pragma once
// Reads granules of a weight file, in the package or outside, in either layout.

#include <cstdint>
#include <span>

#include "engine/package/package.hpp"
#include "engine/package/package_folder.hpp"

namespace accord::engine {

/// Opens the file of `entry`. Its length must be what it was when the package was made.
Result<PackageFile> open_weight_file(const PackageFolder& folder, const WeightFileEntry& entry);

/// Reads granules [first, first + count) of `tensor` into `destination`, one after the other, and nothing else. This
/// also holds for a file outside the package, which is row-major even if the tensor is divided along another dimension
/// than the first.
Status read_granules(const PackageFile& file, const WeightFileEntry& entry, const TensorEntry& tensor,
                     std::uint64_t first, std::uint64_t count, std::span<std::byte> destination);

}  // namespace accord::engine
