#pragma once
// Rows of an embedding table that is also the weight of a product and therefore exists only in packed form.

#include <cstdint>
#include <optional>

#include "kernels/index.hpp"
#include "kernels/linear/format.hpp"

namespace accord::kernels {

/// Selects outputs of `table` by `count` ids (int64 or int32, contiguous). `table` may be the part of a larger table
/// of `total_rows` rows that starts at `first_row`; ids of rows outside the part give zeros.
struct GatherOutputsCall {
  const void* ids = nullptr;
  DType id_dtype = DType::kInt64;
  std::int64_t count = 0;
  const PackedMatrix* table = nullptr;
  std::int64_t first_row = 0;
  std::int64_t total_rows = 0;
  void* output = nullptr;  ///< [count, in], contiguous, of a real dtype; rounded to nearest
  DType output_dtype = DType::kFloat32;
  float* row = nullptr;  ///< scratch of [in]
};

/// Like gather_rows: returns the first bad id and then writes nothing. Cost: unpack_output for each id.
std::optional<BadId> gather_outputs(const GatherOutputsCall& call);

}  // namespace accord::kernels
