#pragma once
// Reads this rank's part of a tensor into memory, row-major.

#include <span>

#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/program/region.hpp"

namespace accord::engine {

/// Memory that grows to the size of the largest tensor and is reused for all tensors in turn.
class Staging {
 public:
  Result<std::span<std::byte>> of(std::size_t bytes);

 private:
  Region region_;
};

/// Returns the bytes of the part, which are the same in the file and row-major.
std::size_t part_bytes(const TensorEntry& entry, const TensorPart& part);

/// Reads and checks the granules of `part` into `rows`, which has part_bytes() bytes. Units along a dimension other
/// than the first are staged in `units` and interleaved from there. REQUIRES: the tensor is not packed.
Status read_row_major(Package& package, const TensorEntry& entry, const TensorPart& part, Staging& units,
                      std::span<std::byte> rows);

}  // namespace accord::engine
