#pragma once
// Token masks written in Python.

#include <nanobind/nanobind.h>

#include <memory>

#include "accord/generation.hpp"

namespace accord::python {

/// Makes a mask of `mask(sample, generated) -> bytes`, in which token t is bit t % 8 of byte t // 8, and tokens beyond
/// the end are not allowed. `generated` is a memoryview of 32-bit integers. Throws std::bad_cast if it is not callable;
/// None is no mask.
///
/// One thread of the process calls all masks, while the models compute; the threads of the models never need the GIL.
/// REQUIRES: the GIL.
std::shared_ptr<const TokenMask> token_mask_argument(nanobind::handle mask);

}  // namespace accord::python
