#pragma once
// Steps of programs on a device that select elements by index. Faults are reported when the run ends.

#include <vector>

#include "engine/program/tensor.hpp"

namespace accord::engine {

struct Node;

/// Looks up rows of a table by their ids. ids and y are contiguous. The table may be a part of a larger one, or a
/// float8 weight (float8_products.hpp).
struct RowLookup {
  Tensor ids, table, y;
  std::int64_t table_row_stride = 0;  ///< elements
  std::int64_t first_row = 0, rows_in_all = 0;
};
Step gather_rows_on_device(const Node* node, const RowLookup& lookup);

/// kYes: ids below 0 count from the end of the dimension.
enum class FromEnd : std::uint8_t { kNo, kYes };

/// y = x[.., ids, ..]: tensors of ids for the adjacent dimensions [first, first + ids.size()), broadcast to `picked`.
/// x and y are contiguous.
struct Picking {
  Tensor x;
  std::vector<Tensor> ids;
  int first = 0;
  FromEnd from_end = FromEnd::kYes;
  Sizes picked;
  Tensor y;
};
/// REQUIRES: at most kMostPickedIds tensors of ids.
inline constexpr std::size_t kMostPickedIds = 4;
Step pick_on_device(const Node* node, const Picking& picking);

/// Same as kernels::gather_elements.
Step gather_elements_on_device(const Node* node, const Tensor& x, int dim, const Tensor& index, const Tensor& y);

}  // namespace accord::engine
