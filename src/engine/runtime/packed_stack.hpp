#pragma once
// Several weights of one size, each packed by itself: those of experts, of which a run reads the chosen ones only, and of the
// groups of a convolution.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/runtime/region.hpp"
#include "kernels/linear/format.hpp"

namespace accord::engine {

class PackedStack {
 public:
  /// Packs row-major weights [experts, out, in] of a real dtype, each in that dtype; without `weights` the memory is
  /// left zero. kUnsupported for other ones.
  static Result<PackedStack> of_experts(const std::byte* weights, DType dtype, const std::vector<std::int64_t>& shape,
                                        const std::string& name);
  /// Packs a row-major weight [out, in, ..] of a convolution of `groups` groups as [groups, out / groups, .. * in]: the channels
  /// of a place lie side by side, as in the rows that are multiplied with it.
  static Result<PackedStack> of_convolution(const std::byte* weight, DType dtype,
                                            const std::vector<std::int64_t>& shape, std::int64_t groups,
                                            const std::string& name);

  /// Of matrices that are packed already, in memory of somebody else: `count` like `first`, so many bytes apart.
  PackedStack(const kernels::PackedMatrix& first, std::int64_t count, std::uint64_t bytes_of_one);

  std::int64_t count() const { return count_; }
  std::int64_t out() const { return first_.out(); }
  std::int64_t in() const { return first_.in(); }
  const kernels::PackedFormat& format() const { return first_.format; }
  kernels::PackedMatrix matrix(std::int64_t index) const;

 private:
  kernels::PackedMatrix first_;
  std::int64_t count_ = 0, bytes_of_one_ = 0;
  Region memory_;  // empty if the matrices are somebody else's
};

}  // namespace accord::engine
