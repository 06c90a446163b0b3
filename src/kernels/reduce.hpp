#pragma once
// Elementwise reductions over several sources: what a collective computes with.

#include <complex>
#include <cstddef>

#include "accord/buffer.hpp"
#include "kernels/instruction_set.hpp"  // instruction_set()

namespace accord::kernels {

/// destination[i] = the canonical tree over sources[0][i] .. sources[n-1][i]: the balanced binary tree split at the largest
/// power of two below n, e.g. ((s0+s1)+(s2+s3))+s4.
///
/// Floats of 8 and 16 bits are widened to fp32, combined, and rounded once to nearest even; what rounds beyond the largest
/// becomes infinity, in float8_e4m3fn, which has none, that largest one. avg divides by n before that rounding, premul_sum multiplies source
/// s by factors[s] (taken to fp32, or fp64 for float64 and complex128) when it is read. Sums and products of integers wrap;
/// their avg is the wrapped sum divided toward zero. Products of complex numbers are ac - bd and ad + bc, each operation
/// rounded. min and max give NaN if any source is NaN; -0 is below +0. A NaN that is computed is always the positive quiet
/// one, so that every instruction set gives the same bits. bool: sum and max are or, product and min are and.
///
/// `destination` and `mirror` (a second destination, or nullptr) may each be the same memory as one source, not overlap it otherwise.
/// No alignment is required. n >= 1; one source is copied, or multiplied. `factors`: n of them for premul_sum, else not read.
/// Cost: one read of each source and one write of each destination; avg of integers reads and writes them once more.
using ReduceKernel = void (*)(void* destination, void* mirror, const void* const* sources,
                              const std::complex<double>* factors, int n, std::size_t count);

/// The kernel for a combination, for the best instruction set of this machine; nullptr where !is_defined(op, dtype).
ReduceKernel reduce_kernel(DType dtype, ReduceOp op);

}  // namespace accord::kernels
