#pragma once
// A oneDNN matmul made for one shape, ready to run: what gemm.cpp keeps in its cache.

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "kernels/gemm.hpp"

namespace accord::kernels {

/// Memory on a cache line boundary.
struct FreeAligned {
  void operator()(void* memory) const;
};
using AlignedBytes = std::unique_ptr<std::byte, FreeAligned>;
/// Null if memory is short. `bytes` > 0.
AlignedBytes allocate_aligned(std::size_t bytes);

/// The weights in oneDNN's packed layout.
struct LinearWeights::Packed {
  std::int64_t out = 0;
  std::int64_t in = 0;
  dnnl::memory::desc layout;
  AlignedBytes bytes;
  dnnl::memory memory;  ///< over `bytes`; only read after packing, so that threads may share it
};

/// All that a prepared matmul depends on.
struct LinearShape {
  std::int64_t m, out, in, x_row_stride, y_row_stride;
  std::int64_t column_block;  ///< of the packed weights
  bool has_bias;
  bool relu;
  bool operator==(const LinearShape&) const = default;
};
LinearShape shape_of(const LinearWeights::Packed& weights, const LinearCall& call);

/// Used by one thread at a time: it owns the descriptors whose pointers a call sets.
class LinearExecutor {
 public:
  /// Throws dnnl::error or std::bad_alloc. Call under OneThread.
  LinearExecutor(const LinearWeights::Packed& weights, const LinearShape& shape);
  /// Call under OneThread.
  dnnl_status_t run(const LinearWeights::Packed& weights, const LinearCall& call);

 private:
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  dnnl::memory x_, y_, bias_, scratch_;
  AlignedBytes scratch_bytes_;
};

/// oneDNN's CPU engine.
const dnnl::engine& cpu_engine();
/// The packed layout for weights [out, in]. Throws dnnl::error. Call under OneThread.
dnnl::memory::desc packed_layout(std::int64_t out, std::int64_t in);

}  // namespace accord::kernels
