#pragma once
// Reading granules of a weight file, wherever and however it has them.

#include <cstdint>
#include <span>

#include "engine/package/package.hpp"
#include "engine/package/package_folder.hpp"

namespace accord::engine {

/// The file of `entry`, of the length that it had when the package was made.
Result<PackageFile> open_weight_file(const PackageFolder& folder, const WeightFileEntry& entry);

/// Reads granules [first, first + count) of `tensor`, of which it reads nothing else, into `destination`: one after the other, also
/// those of a file outside, which has the rows of a tensor that is divided along another dimension whole.
Status read_granules(const PackageFile& file, const WeightFileEntry& entry, const TensorEntry& tensor,
                     std::uint64_t first, std::uint64_t count, std::span<std::byte> destination);

}  // namespace accord::engine
