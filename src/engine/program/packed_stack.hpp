#pragma once
// Several weights of one size, each packed by itself: those of experts, of which a run reads only the chosen ones,
// and those of the groups of a convolution.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/program/region.hpp"
#include "kernels/linear/format.hpp"

namespace accord::engine {

class PackedStack {
 public:
  /// Packs row-major weights [experts, out, in] of a real dtype, each in that dtype. Without `weights` the memory is
  /// left zero. Fails with kUnsupported for other weights.
  static Result<PackedStack> of_experts(const std::byte* weights, DType dtype, const std::vector<std::int64_t>& shape,
                                        const std::string& name);
  /// Packs a row-major weight [out, in, ..] of a convolution of `groups` groups as [groups, out / groups, .. * in].
  /// The channels of a place are adjacent, as in the rows that are multiplied with it.
  static Result<PackedStack> of_convolution(const std::byte* weight, DType dtype,
                                            const std::vector<std::int64_t>& shape, std::int64_t groups,
                                            const std::string& name);

  /// A stack of `count` matrices like `first` that are already packed, in memory that the caller owns,
  /// `bytes_per_matrix` bytes apart.
  PackedStack(const kernels::PackedMatrix& first, std::int64_t count, std::uint64_t bytes_per_matrix);

  std::int64_t count() const { return count_; }
  std::int64_t out() const { return first_.out(); }
  std::int64_t in() const { return first_.in(); }
  const kernels::PackedFormat& format() const { return first_.format; }
  kernels::PackedMatrix matrix(std::int64_t index) const;

 private:
  kernels::PackedMatrix first_;
  std::int64_t count_ = 0, bytes_per_matrix_ = 0;
  Region memory_;  // empty if the caller owns the matrices
};

}  // namespace accord::engine
