// Works row by row: unpacks a row to fp32, then rounds it to the output's dtype.

#include "kernels/linear/gather.hpp"

#include <algorithm>

#include "kernels/elementwise/row_kernels.hpp"
#include "kernels/linear/pack.hpp"

namespace accord::kernels {

std::optional<BadId> gather_outputs(const GatherOutputsCall& call) {
  if (const auto bad = find_bad_id(call.ids, call.id_dtype, call.count, call.total_rows)) return bad;
  const PackedMatrix& table = *call.table;
  const RowKernel convert = convert_row_kernel(DType::kFloat32, call.output_dtype);
  const std::int64_t row_bytes = table.in() * static_cast<std::int64_t>(size_of(call.output_dtype));
  for (std::int64_t i = 0; i < call.count; ++i) {
    const std::int64_t row = id_at(call.ids, call.id_dtype, i) - call.first_row;
    if (row >= 0 && row < table.out()) {
      unpack_output(table, row, call.row);
    } else {
      std::fill_n(call.row, table.in(), 0.0F);
    }
    const void* const from = call.row;
    convert(&from, static_cast<std::byte*>(call.output) + i * row_bytes, table.in(), {});
  }
  return std::nullopt;
}

}  // namespace accord::kernels
