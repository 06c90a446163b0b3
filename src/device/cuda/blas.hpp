#pragma once
// The products of NVIDIA's GPUs, by cuBLASLt.

#include "device/blas.hpp"

namespace accord::device::cuda {

/// kUnsupported in builds without cuBLASLt's header; else as blas_library().
Result<Blas*> blas();

}  // namespace accord::device::cuda
