#pragma once
// Single elements of any real or complex dtype.

#include <complex>

#include "accord/buffer.hpp"

namespace accord {

/// Returns the exact value of the float or complex number of type `dtype` at `from`, which need not be aligned. Meant
/// for single values; the kernels convert arrays. REQUIRES: a dtype of kind kFloat or kComplex.
std::complex<double> number_at(const void* from, DType dtype);

/// Stores `number` as the nearest float of type `dtype`, ties to even. docs/communicator.md defines the result beyond
/// the largest value. REQUIRES: kind kFloat.
void store_number(double number, DType dtype, void* to);

}  // namespace accord
