// cuBLASLt's matrices are column-major, so it computes the transpose c^T [n, m] = b^T * a^T: the memory of a
// row-major matrix is that of its column-major transpose.
// The library's kernels for a shape, or the fact that it has none, are cached together with the descriptions of the
// matrices. The cache holds the most recently used shapes; every length of a prompt is a shape of its own. A kernel
// that was chosen for a shape is also used for shapes with about as many rows (rows_like()), if it can compute them, so
// that few lengths of prompts have to be timed. Scales of rows and columns are cuBLASLt's "outer vector scaling", which
// exists from version 12.9 on, for compute capability 9.0 only.
#include "device/cuda/blas.hpp"

#if __has_include(<cublasLt.h>)

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/recent_map.hpp"
#include "device/cuda/blas_library.hpp"
#include "device/cuda/device_scope.hpp"
#include "device/cuda/error.hpp"
#include "device/product_timing.hpp"

// The first version that supports scales of rows and columns.
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

/// Alignment that has() assumes, because the addresses of the matrices are not yet known. A larger alignment does not
/// help a kernel, and the position of a tensor in the arena must not affect the choice of kernel.
constexpr std::uint32_t kAssumedAlignment = 16;
/// The largest power of two, up to kAssumedAlignment, that divides the address.
std::uint32_t alignment_of(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory) | kAssumedAlignment;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

using Alignments = std::array<std::uint32_t, 3>;  // of a, b, and of c and the bias
Alignments alignments_of(const Product& p) {
  // There is no preference for the bias, and kernels may read as many elements of it at once as they write of c.
  return {alignment_of(p.a.data), alignment_of(p.b.data), std::min(alignment_of(p.c.data), alignment_of(p.bias))};
}

/// The key of a choice.
struct Shape {
  std::int16_t device = 0;
  std::array<std::int64_t, 4> sizes = {};
  std::array<std::int64_t, 6> strides = {};
  std::array<DType, 3> dtypes = {};
  Alignments alignments = {};
  SecondLayout second_layout = SecondLayout::kRows;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool has_workspace = false, has_scales = false, uses_choice = false;
  auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees a 0 in it
};

Shape shape_of(const Product& p, Device device, const Alignments& alignments) {
  return {device.index,
          {p.m, p.n, p.k, p.batch},
          {p.a.row_stride, p.a.batch_stride, p.b.row_stride, p.b.batch_stride, p.c.row_stride, p.c.batch_stride},
          {p.a.dtype, p.b.dtype, p.c.dtype},
          alignments,
          p.second_layout,
          epilogue_of(p),
          p.workspace != nullptr,
          p.a_scales != nullptr,
          p.uses_choice};
}

using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, decltype(&cublasLtMatmulDescDestroy)>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, decltype(&cublasLtMatrixLayoutDestroy)>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(&cublasLtMatmulPreferenceDestroy)>;

/// Descriptions of the matrices and the product, and the kernels that can compute it: at least one, the chosen one
/// alone once one has been chosen.
struct Choice {
  Description product;
  Layout a, b, c;
  std::vector<cublasLtMatmulAlgo_t> kernels;
};

/// Maximum number of cached choices. A model has about ten weights, and a captured graph no longer needs its choices.
/// A new choice takes a few hundred microseconds on the host; a cached one uses a few hundred bytes.
constexpr std::size_t kMaxChoices = 4096;
/// The number of kernels that the library is asked for.
constexpr int kCandidates = 8;

/// NVIDIA's recommendation for the GPUs that need the most.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

class CudaBlas final : public Blas {
 public:
  explicit CudaBlas(const BlasLibrary& library) : library_(library) {}

  std::size_t workspace_bytes() const override { return kWorkspaceBytes; }

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

  Result<bool> has(const Product& product, Device device) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    const std::lock_guard lock(mutex_);
    ACCORD_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, handle_of(device));
    constexpr Alignments kAssumed = {kAssumedAlignment, kAssumedAlignment, kAssumedAlignment};
    ACCORD_ASSIGN_OR_RETURN(const Choice* const choice, choice_of(handle, product, device, kAssumed));
    return choice != nullptr;
  }

  Result<int> candidates(const Product& product, Device device) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    const std::lock_guard lock(mutex_);
    ACCORD_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, handle_of(device));
    ACCORD_ASSIGN_OR_RETURN(const Choice* const choice, choice_of(handle, product, device, alignments_of(product)));
    return choice == nullptr ? 0 : static_cast<int>(choice->kernels.size());
  }

  Status choose(int candidate, const Product& product, Device device) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    const std::lock_guard lock(mutex_);
    ACCORD_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, handle_of(device));
    const Alignments alignments = alignments_of(product);
    ACCORD_ASSIGN_OR_RETURN(Choice* const choice, choice_of(handle, product, device, alignments));
    if (choice == nullptr || choice->kernels.size() == 1) return Status();
    const cublasLtMatmulAlgo_t kernel = choice->kernels.at(static_cast<std::size_t>(candidate));
    choice->kernels = {kernel};
    if (const Shape shape = shape_like(product, device, alignments); fastest_.find(shape) == nullptr)
      fastest_.add(shape, kernel);
    return Status();
  }

  Status multiply(const Product& product, Device device, Stream stream) override {
    return multiply_by(0, product, device, stream);
  }

  Status multiply_by(int candidate, const Product& product, Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    const std::lock_guard lock(mutex_);
    ACCORD_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, handle_of(device));
    ACCORD_ASSIGN_OR_RETURN(const Choice* const choice, choice_of(handle, product, device, alignments_of(product)));
    if (choice == nullptr) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("cuBLASLt has no kernel for [{}, {}] x [{}, {}] of {} to {}", product.m, product.k,
                                product.k, product.n, to_string(product.a.dtype), to_string(product.c.dtype)));
    }
    // Another thread may have chosen meanwhile.
    const auto of_these = std::min(static_cast<std::size_t>(candidate), choice->kernels.size() - 1);
    cublasLtMatmulDesc_t const description = choice->product.get();
    if (product.bias != nullptr)
      ACCORD_RETURN_IF_ERROR(set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
    if (product.a_scales != nullptr) ACCORD_RETURN_IF_ERROR(set_scales(description, product));
    return status_of("cublasLtMatmul",
                     library_.Matmul(handle, description, &product.alpha, product.b.data, choice->b.get(),
                                     product.a.data, choice->a.get(), &product.beta, product.c.data, choice->c.get(),
                                     const_cast<void*>(product.c.data), choice->c.get(), &choice->kernels[of_these],
                                     product.workspace, product.workspace == nullptr ? 0 : kWorkspaceBytes,
                                     static_cast<cudaStream_t>(stream.handle)));
  }

 private:
  Status status_of(std::string_view call, cublasStatus_t result) const {
    if (result == CUBLAS_STATUS_SUCCESS) return {};
    const StatusCode code = result == CUBLAS_STATUS_NOT_SUPPORTED ? StatusCode::kUnsupported : StatusCode::kInternal;
    return Status(code, fmt::format("{}: {}", call, library_.GetStatusString(result)));
  }
  template <typename T>
  Status set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t what, const T& value) const {
    return status_of("cublasLtMatmulDescSetAttribute",
                     library_.MatmulDescSetAttribute(product, what, &value, sizeof value));
  }

  // Sets the vectors of scales. The library's first matrix is our second. REQUIRES: takes_scales().
  Status set_scales(cublasLtMatmulDesc_t description, const Product& product) const {
#if CUBLAS_VERSION >= ACCORD_CUBLASLT_SCALED
    const std::int32_t vectors = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    ACCORD_RETURN_IF_ERROR(set(description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, vectors));
    ACCORD_RETURN_IF_ERROR(set(description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, vectors));
    ACCORD_RETURN_IF_ERROR(set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b_scales));
    return set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a_scales);
#else
    (void)description, (void)product;
    return Status(StatusCode::kUnsupported, "this build's cublasLt.h does not support scales of rows and columns");
#endif
  }

  Result<cublasLtHandle_t> handle_of(Device device) {
    cublasLtHandle_t& handle = handles_[device.index];
    if (handle == nullptr) ACCORD_RETURN_IF_ERROR(status_of("cublasLtCreate", library_.Create(&handle)));
    return handle;
  }

  // Describes a matrix of `rows` row-major rows as the column-major matrix with the same memory.
  Result<Layout> layout_of(const Matrices& matrices, std::int64_t rows, std::int64_t columns,
                           std::int64_t batch) const {
    const auto type = type_of(matrices.dtype);
    if (!type)
      return Status(StatusCode::kUnsupported, fmt::format("cuBLASLt cannot multiply {}", to_string(matrices.dtype)));
    cublasLtMatrixLayout_t created = nullptr;
    ACCORD_RETURN_IF_ERROR(
        status_of("cublasLtMatrixLayoutCreate",
                  library_.MatrixLayoutCreate(&created, *type, static_cast<std::uint64_t>(columns),
                                              static_cast<std::uint64_t>(rows), matrices.row_stride)));
    Layout layout(created, library_.MatrixLayoutDestroy);
    if (batch == 1) return layout;
    const auto count = static_cast<std::int32_t>(batch);
    ACCORD_RETURN_IF_ERROR(status_of(
        "cublasLtMatrixLayoutSetAttribute",
        library_.MatrixLayoutSetAttribute(created, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count)));
    ACCORD_RETURN_IF_ERROR(
        status_of("cublasLtMatrixLayoutSetAttribute",
                  library_.MatrixLayoutSetAttribute(created, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                    &matrices.batch_stride, sizeof matrices.batch_stride)));
    return layout;
  }

  Result<Description> description_of(const Product& p) const {
    cublasLtMatmulDesc_t created = nullptr;
    ACCORD_RETURN_IF_ERROR(
        status_of("cublasLtMatmulDescCreate", library_.MatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    Description description(created, library_.MatmulDescDestroy);
    const bool rows = p.second_layout == SecondLayout::kRows;
    ACCORD_RETURN_IF_ERROR(
        set(created, CUBLASLT_MATMUL_DESC_TRANSA, rows ? CUBLAS_OP_T : CUBLAS_OP_N));  // its first is our b
    ACCORD_RETURN_IF_ERROR(set(created, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p)));
    if (p.bias != nullptr) {
      const auto type = type_of(p.c.dtype);
      if (!type)
        return Status(StatusCode::kUnsupported, fmt::format("cuBLASLt cannot multiply {}", to_string(p.c.dtype)));
      ACCORD_RETURN_IF_ERROR(set(created, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, *type));
      ACCORD_RETURN_IF_ERROR(set(created, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    }
    if (p.a_scales != nullptr) ACCORD_RETURN_IF_ERROR(set_scales(created, p));
    return description;
  }

  Result<Preference> preference_of(const Product& p, const Alignments& alignments) const {
    cublasLtMatmulPreference_t created = nullptr;
    ACCORD_RETURN_IF_ERROR(status_of("cublasLtMatmulPreferenceCreate", library_.MatmulPreferenceCreate(&created)));
    Preference preference(created, library_.MatmulPreferenceDestroy);
    const auto set_preference = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      return status_of("cublasLtMatmulPreferenceSetAttribute",
                       library_.MatmulPreferenceSetAttribute(created, what, &value, sizeof value));
    };
    const std::uint64_t workspace = p.workspace == nullptr ? 0 : kWorkspaceBytes;
    ACCORD_RETURN_IF_ERROR(set_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace));
    // Add partial sums over k in float32; in the output's type they would be rounded first.
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    ACCORD_RETURN_IF_ERROR(set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
    ACCORD_RETURN_IF_ERROR(set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[1]));
    ACCORD_RETURN_IF_ERROR(set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[0]));
    ACCORD_RETURN_IF_ERROR(set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]));
    ACCORD_RETURN_IF_ERROR(set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]));
    return preference;
  }

  // Returns the shape with the rows for which products share a choice.
  static Shape shape_like(const Product& product, Device device, const Alignments& alignments) {
    Product like = product;
    like.m = rows_like(product.m);
    return shape_of(like, device, alignments);
  }

  // Returns the cached choice or makes a new one; null if the library has no kernel.
  Result<Choice*> choice_of(cublasLtHandle_t handle, const Product& p, Device device, const Alignments& alignments) {
    const Shape shape = shape_of(p, device, alignments);
    std::optional<Choice>* cached = choices_.find(shape);
    if (cached == nullptr) {
      const cublasLtMatmulAlgo_t* const fastest = fastest_.find(shape_like(p, device, alignments));
      ACCORD_ASSIGN_OR_RETURN(std::optional<Choice> choice, find_kernels(handle, p, alignments, fastest));
      cached = &choices_.add(shape, std::move(choice));
    }
    return cached->has_value() ? &**cached : nullptr;
  }

  // `fastest`: the kernel that was chosen for such shapes; null if none was.
  Result<std::optional<Choice>> find_kernels(cublasLtHandle_t handle, const Product& p, const Alignments& alignments,
                                             const cublasLtMatmulAlgo_t* fastest) const {
    const bool rows = p.second_layout == SecondLayout::kRows;
    ACCORD_ASSIGN_OR_RETURN(Layout a, layout_of(p.a, p.m, p.k, p.batch));
    ACCORD_ASSIGN_OR_RETURN(Layout b, layout_of(p.b, rows ? p.n : p.k, rows ? p.k : p.n, p.batch));
    ACCORD_ASSIGN_OR_RETURN(Layout c, layout_of(p.c, p.m, p.n, p.batch));
    ACCORD_ASSIGN_OR_RETURN(Description description, description_of(p));
    Choice choice{std::move(description), std::move(a), std::move(b), std::move(c), {}};
    if (fastest != nullptr) {
      cublasLtMatmulHeuristicResult_t checked = {};
      const cublasStatus_t result =
          library_.MatmulAlgoCheck(handle, choice.product.get(), choice.b.get(), choice.a.get(), choice.c.get(),
                                   choice.c.get(), fastest, &checked);
      const std::size_t workspace = p.workspace == nullptr ? 0 : kWorkspaceBytes;
      if (result == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= workspace) {
        choice.kernels = {*fastest};
        return std::optional<Choice>(std::move(choice));
      }
    }
    ACCORD_ASSIGN_OR_RETURN(const Preference preference, preference_of(p, alignments));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> best = {};
    int found = 0;
    const cublasStatus_t result =
        library_.MatmulAlgoGetHeuristic(handle, choice.product.get(), choice.b.get(), choice.a.get(), choice.c.get(),
                                        choice.c.get(), preference.get(), kCandidates, best.data(), &found);
    if (result == CUBLAS_STATUS_NOT_SUPPORTED) return std::optional<Choice>();
    ACCORD_RETURN_IF_ERROR(status_of("cublasLtMatmulAlgoGetHeuristic", result));
    for (int i = 0; i < found; ++i) {
      const cublasLtMatmulHeuristicResult_t& each = best[static_cast<std::size_t>(i)];
      if (each.state == CUBLAS_STATUS_SUCCESS) choice.kernels.push_back(each.algo);
    }
    if (choice.kernels.empty()) return std::optional<Choice>();
    return std::optional<Choice>(std::move(choice));
  }

  const BlasLibrary& library_;
  std::mutex mutex_;
  std::map<std::int16_t, cublasLtHandle_t> handles_;
  RecentMap<Shape, std::optional<Choice>> choices_{kMaxChoices};
  RecentMap<Shape, cublasLtMatmulAlgo_t> fastest_{kMaxChoices};  ///< by shape_like()
};

}  // namespace

Result<Blas*> blas() {
  ACCORD_ASSIGN_OR_RETURN(const BlasLibrary* const library, blas_library());
  static auto* const blas = new CudaBlas(*library);  // never freed, for threads that outlive static objects
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
