#pragma once
// The cuBLASLt library, loaded on first use.

#include <cublasLt.h>

#include <memory>
#include <string>

#include "accord/status.hpp"

namespace accord::device::cuda {

/// A loaded library. It is never unloaded.
struct BlasLibrary {
  decltype(&cublasLtGetVersion) GetVersion = nullptr;
  decltype(&cublasLtGetStatusString) GetStatusString = nullptr;
  decltype(&cublasLtCreate) Create = nullptr;
  decltype(&cublasLtMatmul) Matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate = nullptr;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) MatmulAlgoCheck = nullptr;
  std::string path;     ///< of the library's file
  std::string version;  ///< "13.1.1"
};

/// Loads the library at `path`, a file or a name for the loader. Fails with kNotFound if it cannot be loaded, and
/// with kUnsupported if it is not cuBLASLt or has another major version than the header of this build.
Result<std::unique_ptr<const BlasLibrary>> load_blas_library(const std::string& path);

/// Returns this process's library. If ACCORD_CUBLASLT is set, only that one is tried. Otherwise the order is: the
/// library that is already loaded (as by torch), the one of PyPI's package nvidia-cublas installed beside accord, and
/// the system's. The error lists what was tried.
Result<const BlasLibrary*> blas_library();

}  // namespace accord::device::cuda
