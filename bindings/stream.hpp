#pragma once
// Streams of GPUs as Python's libraries give them.

#include <nanobind/nanobind.h>

#include "accord/buffer.hpp"

namespace accord::python {

namespace nb = nanobind;

/// The cudaStream_t of an integer, of torch's streams (`cuda_stream`), of CuPy's (`ptr`), or of an object with __cuda_stream__(); None is the
/// default stream. TypeError for all others.
Stream stream_argument(nb::handle stream);

}  // namespace accord::python

// A piece of the methods' annotations, as the type stub gives them.
#define ACCORD_STREAM_SIG "stream: accord._arrays.Stream | None = None"
