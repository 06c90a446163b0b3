#pragma once
// Calls that select elements by index. Ids are int32 or int64. Each run checks them: an id outside its range makes the
// run fail, and the error names the node and the id.

#include <vector>

#include "engine/program/tensor.hpp"
#include "kernels/linear/format.hpp"

namespace accord::engine {

/// Row i of y is row ids[i] of the table. ids and y are contiguous. If the ranks share a table by rows, `table` has
/// the rows from `first_row` on of `total_rows`; ids in other ranks' rows give zeros.
struct RowLookup {
  Tensor ids, table, y;
  std::int64_t table_row_stride = 0;  ///< elements
  std::int64_t first_row = 0, total_rows = 0;
};

/// Looks up rows of a table that may also be the weight of a linear layer.
struct EmbeddingCall {
  RowLookup lookup;
  const kernels::PackedMatrix* packed = nullptr;  ///< the table, if the CPU has only its packed form
};

/// y[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`, like kernels::gather_elements. x has dimensions.
struct GatherElementsCall {
  Tensor x;
  int dim = 0;
  Tensor index, y;
};

/// kYes: ids below 0 count from the end of the dimension.
enum class FromEnd : std::uint8_t { kNo, kYes };

/// y = x[.., ids, ..]: tensors of ids for the adjacent dimensions [first, first + ids.size()), broadcast to `picked`.
/// x and y are contiguous and have one dtype.
struct PickCall {
  Tensor x;
  std::vector<Tensor> ids;
  int first = 0;
  FromEnd from_end = FromEnd::kYes;
  Sizes picked;
  Tensor y;
};

}  // namespace accord::engine
