#pragma once
// The source of a request, which a model's encoder reads.

#include <nanobind/nanobind.h>

#include <vector>

#include "accord/generation.hpp"

namespace accord::python {

/// Copies a list of token ids, an array or tensor, or a list of arrays (the encoder's inputs, in its order). Raises as
/// ArrayView does.
std::vector<SourceTensor> source_argument(nanobind::handle source);

}  // namespace accord::python
