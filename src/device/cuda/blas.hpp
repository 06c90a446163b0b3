#pragma once
// Matrix products on NVIDIA GPUs, by cuBLASLt.

#include "device/blas.hpp"

namespace accord::device::cuda {

/// Fails with kUnsupported in builds without cuBLASLt's header; other errors are those of blas_library().
Result<Blas*> blas();

}  // namespace accord::device::cuda
