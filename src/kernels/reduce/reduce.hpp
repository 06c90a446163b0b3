#pragma once
// Elementwise reductions over several sources: the arithmetic of the collectives.

#include <complex>
#include <cstddef>

#include "accord/buffer.hpp"
#include "kernels/instruction_set.hpp"  // instruction_set()

namespace accord::kernels {

/// destination[i] = the canonical tree over sources[0][i] .. sources[n-1][i]: the balanced binary tree that splits at
/// the largest power of two below n, e.g. ((s0+s1)+(s2+s3))+s4.
///
/// 8-bit and 16-bit floats are widened to fp32, combined, and rounded once to nearest even. A result that rounds
/// beyond the largest number becomes infinity; in float8_e4m3fn, which has no infinity, it becomes the largest
/// number. avg divides by n before that rounding. premul_sum multiplies source s by factors[s] when it reads it; the
/// factor is converted to fp32, or to fp64 for float64 and complex128.
/// Sums and products of integers wrap; their avg is the wrapped sum divided, rounding toward zero. Products of
/// complex numbers are ac - bd and ad + bc, with each operation rounded. min and max return NaN if any source is NaN;
/// -0 is below +0. A computed NaN is always the positive quiet one, so every instruction set gives bit-identical
/// results. For bool, sum and max are or; product and min are and.
///
/// `destination` and `mirror` (a second destination, or nullptr) may each be the same memory as one source, but must
/// not overlap it otherwise. No alignment is required. n >= 1; a single source is copied, or multiplied. `factors`
/// has n elements for premul_sum and is not read otherwise.
/// Cost: one read of each source and one write of each destination; avg of integers reads and writes the destinations
/// once more.
using ReduceKernel = void (*)(void* destination, void* mirror, const void* const* sources,
                              const std::complex<double>* factors, int n, std::size_t count);

/// Returns the kernel for a combination, for the best instruction set of this machine; nullptr if
/// !is_defined(op, dtype).
ReduceKernel reduce_kernel(DType dtype, ReduceOp op);

}  // namespace accord::kernels
