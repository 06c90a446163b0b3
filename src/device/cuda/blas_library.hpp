#pragma once
// cuBLASLt's library, loaded when it is first needed.

#include <cublasLt.h>

#include <memory>
#include <string>

#include "accord/status.hpp"

namespace accord::device::cuda {

/// A loaded library; never unloaded.
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
  std::string path;     ///< of the file
  std::string version;  ///< "13.1.1"
};

/// Loads the one at `path`, a file or a name for the loader. kNotFound if it cannot be loaded; kUnsupported if it is no cuBLASLt, or of
/// another major version than the header of this build.
Result<std::unique_ptr<const BlasLibrary>> load_blas_library(const std::string& path);

/// This process's: ACCORD_CUBLASLT where that is set, and no other then; else the one that is loaded already (as by torch), the one of PyPI's
/// package nvidia-cublas beside accord, the system's. The error says what was tried.
Result<const BlasLibrary*> blas_library();

}  // namespace accord::device::cuda
