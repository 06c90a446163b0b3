#pragma once
// One element of any dtype that is a real or complex number.

#include <complex>

#include "accord/buffer.hpp"

namespace accord {

/// The value of the float or complex number of type `dtype` at `from`, exactly; no alignment is required. For single values: the
/// kernels convert arrays. REQUIRES: a dtype of kind kFloat or kComplex.
std::complex<double> number_at(const void* from, DType dtype);

/// Stores `number` as the nearest float of type `dtype`, ties to even; what is beyond the largest value as docs/communicator.md says. REQUIRES: kind
/// kFloat.
void store_number(double number, DType dtype, void* to);

}  // namespace accord
