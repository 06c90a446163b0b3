// cuBLASLt's matrices are column-major, so it computes the transpose: c^T [n, m] = b^T * a^T, where a row-major matrix is, as it lies, the
// transpose of a column-major one. What the library chose for a shape is kept with the descriptions of its matrices. Scales of rows and columns
// are cuBLASLt's "outer vector scaling", which it has from 12.9 on for compute capability 9.0 alone.
#include "device/cuda/blas.hpp"

#if __has_include(<cublasLt.h>)

#include <fmt/format.h>

#include <array>
#include <compare>
#include <map>
#include <mutex>
#include <tuple>

#include "device/cuda/blas_library.hpp"
#include "device/cuda/device_scope.hpp"
#include "device/cuda/error.hpp"

// The version that knows scales of rows and columns.
#define ACCORD_CUBLASLT_SCALED 120900

namespace accord::device::cuda {
namespace {

std::optional<cudaDataType_t> type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return CUDA_R_32F;
    case DType::kBFloat16: return CUDA_R_16BF;
    case DType::kFloat16: return CUDA_R_16F;
    case DType::kFloat8E4M3FN: return CUDA_R_8F_E4M3;
    default: return std::nullopt;
  }
}

cublasLtEpilogue_t epilogue_of(const Product& product) {
  const bool bias = product.bias != nullptr;
  switch (product.epilogue) {
    case Epilogue::kRelu: return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Epilogue::kGeluTanh: return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default: return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

/// The largest power of two up to 256 that divides the address.
std::uint32_t alignment_of(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

/// What a choice depends on.
struct Shape {
  std::int16_t device = 0;
  std::array<std::int64_t, 4> sizes = {};
  std::array<std::int64_t, 6> strides = {};
  std::array<DType, 3> dtypes = {};
  std::array<std::uint32_t, 3> alignments = {};
  SecondIs second_is = SecondIs::kRows;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool has_workspace = false, has_scales = false;
  auto operator<=>(const Shape&) const = default;
};

Shape shape_of(const Product& p, Device device) {
  return {device.index,
          {p.m, p.n, p.k, p.batch},
          {p.a.row_stride, p.a.batch_stride, p.b.row_stride, p.b.batch_stride, p.c.row_stride, p.c.batch_stride},
          {p.a.dtype, p.b.dtype, p.c.dtype},
          {alignment_of(p.a.data), alignment_of(p.b.data), alignment_of(p.c.data)},
          p.second_is,
          epilogue_of(p),
          p.workspace != nullptr,
          p.a_scales != nullptr};
}

/// Descriptions and the chosen kernel; never freed, as shapes are few.
struct Choice {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t kernel = {};
};

class CudaBlas final : public Blas {
 public:
  explicit CudaBlas(const BlasLibrary& library) : library_(library) {}

  std::string describe() const override { return fmt::format("cuBLASLt {}, {}", library_.version, library_.path); }

  Result<bool> takes_scales(Device device) override {
#if CUBLAS_VERSION >= ACCORD_CUBLASLT_SCALED
    if (library_.GetVersion() < ACCORD_CUBLASLT_SCALED) return false;
    int major = 0, minor = 0;
    ACCORD_RETURN_IF_ERROR(cuda::status_of(
        "cudaDeviceGetAttribute", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index)));
    ACCORD_RETURN_IF_ERROR(cuda::status_of(
        "cudaDeviceGetAttribute", cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index)));
    return major == 9 && minor == 0;
#else
    (void)device;
    return false;
#endif
  }

  Status multiply(const Product& product, Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    const std::lock_guard lock(mutex_);
    ACCORD_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, handle_of(device));
    const Shape shape = shape_of(product, device);
    auto found = choices_.find(shape);
    if (found == choices_.end()) {
      ACCORD_ASSIGN_OR_RETURN(const Choice choice, choose(handle, product));
      found = choices_.emplace(shape, choice).first;
    }
    const Choice& choice = found->second;
    if (product.bias != nullptr) {
      ACCORD_RETURN_IF_ERROR(set(choice.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
    }
    if (product.a_scales != nullptr) ACCORD_RETURN_IF_ERROR(set_scales(choice.product, product));
    return status_of(
        "cublasLtMatmul",
        library_.Matmul(handle, choice.product, &product.alpha, product.b.data, choice.b, product.a.data, choice.a,
                        &product.beta, product.c.data, choice.c, const_cast<void*>(product.c.data), choice.c,
                        &choice.kernel, product.workspace, product.workspace == nullptr ? 0 : kWorkspaceBytes,
                        static_cast<cudaStream_t>(stream.handle)));
  }

 private:
  Status status_of(std::string_view call, cublasStatus_t said) const {
    if (said == CUBLAS_STATUS_SUCCESS) return {};
    const StatusCode code = said == CUBLAS_STATUS_NOT_SUPPORTED ? StatusCode::kUnsupported : StatusCode::kInternal;
    return Status(code, fmt::format("{}: {}", call, library_.GetStatusString(said)));
  }
  template <typename T>
  Status set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t what, const T& value) const {
    return status_of("cublasLtMatmulDescSetAttribute",
                     library_.MatmulDescSetAttribute(product, what, &value, sizeof value));
  }

  // Of vectors; REQUIRES: takes_scales(). The library's first matrix is our second.
  Status set_scales(cublasLtMatmulDesc_t description, const Product& product) const {
#if CUBLAS_VERSION >= ACCORD_CUBLASLT_SCALED
    const std::int32_t vectors = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    ACCORD_RETURN_IF_ERROR(set(description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, vectors));
    ACCORD_RETURN_IF_ERROR(set(description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, vectors));
    ACCORD_RETURN_IF_ERROR(set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b_scales));
    return set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a_scales);
#else
    (void)description, (void)product;
    return Status(StatusCode::kUnsupported, "this build's cublasLt.h knows no scales of rows and columns");
#endif
  }

  Result<cublasLtHandle_t> handle_of(Device device) {
    cublasLtHandle_t& handle = handles_[device.index];
    if (handle == nullptr) ACCORD_RETURN_IF_ERROR(status_of("cublasLtCreate", library_.Create(&handle)));
    return handle;
  }

  // A matrix of `rows` row-major rows as the column-major one that lies there.
  Result<cublasLtMatrixLayout_t> layout_of(const Matrices& matrices, std::int64_t rows, std::int64_t columns,
                                           std::int64_t batch) const {
    const auto type = type_of(matrices.dtype);
    if (!type) return Status(StatusCode::kUnsupported, fmt::format("no product of {}", to_string(matrices.dtype)));
    cublasLtMatrixLayout_t layout = nullptr;
    ACCORD_RETURN_IF_ERROR(
        status_of("cublasLtMatrixLayoutCreate",
                  library_.MatrixLayoutCreate(&layout, *type, static_cast<std::uint64_t>(columns),
                                              static_cast<std::uint64_t>(rows), matrices.row_stride)));
    if (batch == 1) return layout;
    const auto count = static_cast<std::int32_t>(batch);
    ACCORD_RETURN_IF_ERROR(
        status_of("cublasLtMatrixLayoutSetAttribute",
                  library_.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count)));
    ACCORD_RETURN_IF_ERROR(
        status_of("cublasLtMatrixLayoutSetAttribute",
                  library_.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                    &matrices.batch_stride, sizeof matrices.batch_stride)));
    return layout;
  }

  Result<Choice> choose(cublasLtHandle_t handle, const Product& p) const {
    Choice choice;
    const bool rows = p.second_is == SecondIs::kRows;
    ACCORD_ASSIGN_OR_RETURN(choice.a, layout_of(p.a, p.m, p.k, p.batch));
    ACCORD_ASSIGN_OR_RETURN(choice.b, layout_of(p.b, rows ? p.n : p.k, rows ? p.k : p.n, p.batch));
    ACCORD_ASSIGN_OR_RETURN(choice.c, layout_of(p.c, p.m, p.n, p.batch));
    ACCORD_RETURN_IF_ERROR(status_of("cublasLtMatmulDescCreate",
                                     library_.MatmulDescCreate(&choice.product, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    ACCORD_RETURN_IF_ERROR(
        set(choice.product, CUBLASLT_MATMUL_DESC_TRANSA, rows ? CUBLAS_OP_T : CUBLAS_OP_N));  // its first is our b
    ACCORD_RETURN_IF_ERROR(set(choice.product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p)));
    if (p.bias != nullptr) {
      ACCORD_RETURN_IF_ERROR(set(choice.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, *type_of(p.c.dtype)));
      ACCORD_RETURN_IF_ERROR(set(choice.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    }
    if (p.a_scales != nullptr) ACCORD_RETURN_IF_ERROR(set_scales(choice.product, p));
    cublasLtMatmulPreference_t wishes = nullptr;
    ACCORD_RETURN_IF_ERROR(status_of("cublasLtMatmulPreferenceCreate", library_.MatmulPreferenceCreate(&wishes)));
    const auto wish = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      return status_of("cublasLtMatmulPreferenceSetAttribute",
                       library_.MatmulPreferenceSetAttribute(wishes, what, &value, sizeof value));
    };
    const std::uint64_t workspace = p.workspace == nullptr ? 0 : kWorkspaceBytes;
    Status wished = wish(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    // Parts of k are added up in float32; in the output's type they would be rounded first.
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (wished.ok()) wished = wish(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    if (wished.ok()) wished = wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b.data));
    if (wished.ok()) wished = wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a.data));
    if (wished.ok()) wished = wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.c.data));
    if (wished.ok()) wished = wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.c.data));
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    if (wished.ok()) {
      wished = status_of("cublasLtMatmulAlgoGetHeuristic",
                         library_.MatmulAlgoGetHeuristic(handle, choice.product, choice.b, choice.a, choice.c, choice.c,
                                                         wishes, 1, &best, &found));
    }
    (void)library_.MatmulPreferenceDestroy(wishes);
    ACCORD_RETURN_IF_ERROR(wished);
    if (found == 0) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("cuBLASLt has no kernel for [{}, {}] x [{}, {}] of {} to {}", p.m, p.k, p.k, p.n,
                                to_string(p.a.dtype), to_string(p.c.dtype)));
    }
    choice.kernel = best.algo;
    return choice;
  }

  const BlasLibrary& library_;
  std::mutex mutex_;
  std::map<std::int16_t, cublasLtHandle_t> handles_;
  std::map<Shape, Choice> choices_;
};

}  // namespace

Result<Blas*> blas() {
  ACCORD_ASSIGN_OR_RETURN(const BlasLibrary* const library, blas_library());
  static auto* const blas = new CudaBlas(*library);  // for threads that outlive static objects
  return blas;
}

}  // namespace accord::device::cuda

#else

namespace accord::device::cuda {

Result<Blas*> blas() {
  return Status(StatusCode::kUnsupported,
                "this build was made without cublasLt.h (PyPI's nvidia-cublas): no engines on GPUs");
}

}  // namespace accord::device::cuda

#endif
