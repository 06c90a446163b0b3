#pragma once
// Rows of an embedding's table that is also the weight of a product, and so is there only packed.

#include <cstdint>
#include <optional>

#include "kernels/index.hpp"
#include "kernels/linear/format.hpp"

namespace accord::kernels {

/// `count` ids (int64 or int32, contiguous) pick outputs of `table`, which may be those from `first_row` on of a larger table with
/// `rows_in_all`: ids of its other rows give zeros.
struct GatherOutputsCall {
  const void* ids = nullptr;
  DType id_dtype = DType::kInt64;
  std::int64_t count = 0;
  const PackedMatrix* table = nullptr;
  std::int64_t first_row = 0;
  std::int64_t rows_in_all = 0;
  void* output = nullptr;  ///< [count, in], contiguous, of a real dtype; rounded to nearest
  DType output_dtype = DType::kFloat32;
  float* row = nullptr;  ///< [in] of scratch
};

/// As gather_rows: a bad id is returned, and then nothing was written. Cost: that of unpack_output for each id.
std::optional<BadId> gather_outputs(const GatherOutputsCall& call);

}  // namespace accord::kernels
