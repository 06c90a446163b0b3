// Finding cuBLASLt, which needs no GPU. cuBLASLt's computations need a GPU.
#include <gmock/gmock.h>

#if __has_include(<cublasLt.h>)

#include "device/cuda/blas_library.hpp"

namespace accord::device::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(BlasLibrary, a_missing_path_and_a_wrong_library_are_reported) {
  const Status missing = load_blas_library("/nowhere/libcublasLt.so").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("/nowhere/libcublasLt.so"));
  const Status other = load_blas_library("libm.so.6").status();
  EXPECT_EQ(other.code(), StatusCode::kUnsupported);
  EXPECT_THAT(other.message(), HasSubstr("libm.so.6 has no cublasLtGetVersion"));
}

TEST(BlasLibrary, the_library_of_this_machine_has_every_called_function) {
  const Result<const BlasLibrary*> library = blas_library();
  if (!library.ok()) {
    EXPECT_EQ(library.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(library.status().message(), HasSubstr("ACCORD_CUBLASLT"));
    GTEST_SKIP() << library.status().to_string();
  }
  EXPECT_THAT((*library)->version, StartsWith(std::to_string(CUBLAS_VER_MAJOR) + "."));
  EXPECT_THAT((*library)->path, HasSubstr("cublasLt"));
}

}  // namespace
}  // namespace accord::device::cuda

#endif
