#pragma once
// GPU streams in the forms that Python's libraries use.

#include <nanobind/nanobind.h>

#include "accord/buffer.hpp"

namespace accord::python {

namespace nb = nanobind;

/// Returns the cudaStream_t of an integer, of torch's streams (`cuda_stream`), of CuPy's (`ptr`), or of an object
/// with __cuda_stream__(); None is the default stream. Raises TypeError for anything else.
Stream stream_argument(nb::handle stream);

}  // namespace accord::python

// A piece of the methods' annotations, as in the type stub.
#define ACCORD_STREAM_SIG "stream: accord._arrays.Stream | None = None"
