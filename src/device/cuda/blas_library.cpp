// Empty without the header of cuBLASLt; blas.cpp then reports that.
#if __has_include(<cublasLt.h>)

#include "device/cuda/blas_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <vector>

#include "base/config.hpp"
#include "base/shared_library.hpp"

namespace accord::device::cuda {
namespace {

std::string library_name() { return fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR); }

/// The path in PyPI's packages. Those of CUDA 13 have all libraries in one folder.
std::string path_of_package() {
  const std::string folder = CUBLAS_VER_MAJOR >= 13 ? fmt::format("cu{}", CUBLAS_VER_MAJOR) : std::string("cublas");
  return path_in_site_packages(fmt::format("nvidia/{}/lib/{}", folder, library_name()));
}

/// Looks all functions up. Returns the first name that `handle` lacks; null if it has all.
const char* find_all(void* handle, BlasLibrary& library) {
  const auto find_symbol = [&](const char* name, auto& function) -> const char* {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    return function == nullptr ? name : nullptr;
  };
#define ACCORD_CUBLASLT_FIND(name) \
  if (const char* missing = find_symbol("cublasLt" #name, library.name)) return missing;
  ACCORD_CUBLASLT_FIND(GetVersion)
  ACCORD_CUBLASLT_FIND(GetStatusString)
  ACCORD_CUBLASLT_FIND(Create)
  ACCORD_CUBLASLT_FIND(Matmul)
  ACCORD_CUBLASLT_FIND(MatmulDescCreate)
  ACCORD_CUBLASLT_FIND(MatmulDescDestroy)
  ACCORD_CUBLASLT_FIND(MatmulDescSetAttribute)
  ACCORD_CUBLASLT_FIND(MatrixLayoutCreate)
  ACCORD_CUBLASLT_FIND(MatrixLayoutDestroy)
  ACCORD_CUBLASLT_FIND(MatrixLayoutSetAttribute)
  ACCORD_CUBLASLT_FIND(MatmulPreferenceCreate)
  ACCORD_CUBLASLT_FIND(MatmulPreferenceDestroy)
  ACCORD_CUBLASLT_FIND(MatmulPreferenceSetAttribute)
  ACCORD_CUBLASLT_FIND(MatmulAlgoGetHeuristic)
  ACCORD_CUBLASLT_FIND(MatmulAlgoCheck)
#undef ACCORD_CUBLASLT_FIND
  return nullptr;
}

Result<std::unique_ptr<const BlasLibrary>> library_of(void* handle, const std::string& path) {
  auto library = std::make_unique<BlasLibrary>();
  library->path = path;
  if (const char* missing = find_all(handle, *library))
    return Status(StatusCode::kUnsupported, fmt::format("{} has no {}", path, missing));
  if (const std::string file = library_file_of(reinterpret_cast<const void*>(library->GetVersion)); !file.empty())
    library->path = file;
  const std::size_t version = library->GetVersion();
  library->version = fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
  if (version / 10000 != CUBLAS_VER_MAJOR)
    return Status(StatusCode::kUnsupported, fmt::format("{} is cuBLASLt {}, but this build needs {}.x", library->path,
                                                        library->version, CUBLAS_VER_MAJOR));
  return std::unique_ptr<const BlasLibrary>(std::move(library));
}

Result<std::unique_ptr<const BlasLibrary>> search() {
  ACCORD_RETURN_IF_ERROR(config().status());
  if (!config()->cublaslt.empty()) {
    Result<std::unique_ptr<const BlasLibrary>> configured = load_blas_library(config()->cublaslt);
    return configured.ok() ? std::move(configured)
                           : configured.status().with_context("environment variable ACCORD_CUBLASLT");
  }
  const std::string name = library_name();
  if (void* const loaded = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)) return library_of(loaded, name);
  std::string tried;
  for (const std::string& path : {path_of_package(), name}) {
    Result<std::unique_ptr<const BlasLibrary>> found = load_blas_library(path);
    if (found.ok()) return found;
    tried += fmt::format("; {}", found.status().message());
  }
  return Status(StatusCode::kNotFound,
                fmt::format("cuBLASLt was not found (set ACCORD_CUBLASLT to the path of its library){}", tried));
}

}  // namespace

Result<std::unique_ptr<const BlasLibrary>> load_blas_library(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return Status(StatusCode::kNotFound, dlerror());
  return library_of(handle, path);
}

Result<const BlasLibrary*> blas_library() {
  static const Result<std::unique_ptr<const BlasLibrary>> found = search();
  if (!found.ok()) return found.status();
  return found->get();
}

}  // namespace accord::device::cuda

#endif
