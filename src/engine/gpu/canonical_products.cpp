// The part of a row-parallel layer that one rank computes at the largest number of ranks is, with fewer ranks, a
// group with rows and weights of its own. The kernel therefore sees the same numbers, in the same order, at any
// number of ranks. Layers that are divided by their outputs are one group.
#include "engine/gpu/canonical_products.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/expert_product.hpp"

namespace accord::engine {
namespace {

std::int64_t tile_rows_for(std::int64_t rows) {
  return rows > kFewRows
             ? kManyRows
             : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1))));
}

// Divides the rows of each group into tiles; no tile spans two groups.
Result<Tensor> tiles_of(Preparation& op, std::int64_t groups, std::int64_t rows) {
  const std::int64_t tile_rows = tile_rows_for(rows);
  std::vector<ExpertTile> tiles;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t first = 0; first < rows; first += tile_rows)
      tiles.push_back({group * rows + first, static_cast<std::int32_t>(group),
                       static_cast<std::int32_t>(std::min(tile_rows, rows - first))});
  }
  const auto bytes = std::as_bytes(std::span(tiles));
  return op.constant(DType::kUInt8, {static_cast<std::int64_t>(bytes.size())}, bytes);
}

// Returns the tensor without gaps and at an address that is a multiple of 16 bytes, copied if necessary: where rows
// consist of whole words, kernels read them by words.
Result<Tensor> as_aligned_contiguous(Preparation& op, const Tensor& tensor) {
  constexpr std::int64_t kAligned = sizeof(device::Words);
  if (tensor.layout.is_contiguous() && tensor.offset % kAligned == 0) return tensor;
  ACCORD_ASSIGN_OR_RETURN(const Tensor copy, op.scratch(tensor.dtype, tensor.sizes()));
  op.step(convert_step(tensor, copy));
  return copy;
}

// Views [rows, pieces * width] as [pieces, rows, width].
Tensor in_pieces(Tensor matrix, std::int64_t pieces) {
  const std::int64_t width = matrix.size(1) / pieces;
  const Sizes sizes = {pieces, matrix.size(0), width};
  const Sizes strides = {width * matrix.stride(1), matrix.stride(0), matrix.stride(1)};
  matrix.layout = kernels::strided_layout(sizes, strides);
  return matrix;
}

// Views `count` matrices [m, n] that are `stride` elements apart, beginning at element `first`.
Tensor strided_matrices(Tensor sums, std::int64_t first, std::int64_t stride, std::int64_t count) {
  const Sizes sizes = {count, sums.size(1), sums.size(2)};
  const Sizes strides = {stride, sums.stride(1), sums.stride(2)};
  sums.layout = kernels::strided_layout(sizes, strides);
  sums.offset += first * static_cast<std::int64_t>(size_of(sums.dtype));
  return sums;
}

}  // namespace

Status add_canonical_product(Preparation& op, CanonicalProduct product) {
  ACCORD_RETURN_IF_ERROR(op.require(product.x, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
  if (product.x.dtype != product.weight.dtype) return op.unsupported("its matrices have different dtypes");
  if (product.y.count() == 0) return Status();
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, as_aligned_contiguous(op, product.x));
  Tensor weight = product.weight;
  if (weight.stride(2) != 1 || weight.stride(1) == 0) {
    ACCORD_ASSIGN_OR_RETURN(weight, as_aligned_contiguous(op, weight));
  }
  const auto element = static_cast<std::int64_t>(size_of(x.dtype));
  const std::int64_t groups = x.size(0), rows = x.size(1);
  ACCORD_ASSIGN_OR_RETURN(const Tensor tiles, tiles_of(op, groups, rows));
  ExpertProduct kernel;
  kernel.tile_count = tiles.count() / static_cast<std::int64_t>(sizeof(ExpertTile));
  kernel.weight_bytes = weight.stride(0) * element;
  kernel.y_row_bytes = product.y.size(2) * static_cast<std::int64_t>(size_of(product.y.dtype));
  ProductCall& call = kernel.call;
  call.dtype = x.dtype;
  call.n = weight.size(1);
  call.k = weight.size(2);
  call.x_row_bytes = call.k * element;
  call.weight_row_bytes = weight.stride(1) * element;
  call.y_dtype = product.y.dtype;
  op.step([=, y = product.y](const Execution& execution) {
    ExpertProduct placed = kernel;
    placed.tiles = execution.data<const ExpertTile>(tiles);
    placed.call.x = execution.address(x);
    placed.call.weight = {execution.address(weight)};
    placed.call.y = execution.address(y);
    return launch_tiles(device_run(execution), placed, tile_rows_for(rows));
  });
  return Status();
}

Status add_canonical_pieces(Preparation& op, const CanonicalProduct& product, std::int64_t pieces) {
  const std::int64_t rows = product.x.size(0), outputs = product.weight.size(0);
  Tensor sums = product.y;
  const Sizes sizes = {pieces, rows, outputs};
  if (pieces > 1) {
    ACCORD_ASSIGN_OR_RETURN(sums, op.scratch(DType::kFloat32, sizes));
  }
  sums.layout = kernels::contiguous_layout(sizes);
  ACCORD_RETURN_IF_ERROR(
      add_canonical_product(op, {in_pieces(product.x, pieces), in_pieces(product.weight, pieces), sums}));
  const std::int64_t one = rows * outputs;
  for (std::int64_t stride = 1; stride < pieces; stride *= 2) {
    const std::int64_t count = pieces / (2 * stride);
    const Tensor left = strided_matrices(sums, 0, 2 * stride * one, count),
                 right = strided_matrices(sums, stride * one, 2 * stride * one, count);
    Tensor to = left;
    if (count == 1) {
      to = product.y;
      to.layout = kernels::contiguous_layout(left.sizes());
    }
    op.step(binary_step(&op.node(), kernels::BinaryOp::kAdd, left, right, to));
  }
  return Status();
}

}  // namespace accord::engine
