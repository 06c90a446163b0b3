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
  const auto look = [&](const char* name, auto& function) -> const char* {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    return function == nullptr ? name : nullptr;
  };
#define ACCORD_CUBLASLT_LOOK(name) \
  if (const char* missing = look("cublasLt" #name, library.name)) return missing;
  ACCORD_CUBLASLT_LOOK(GetVersion)
  ACCORD_CUBLASLT_LOOK(GetStatusString)
  ACCORD_CUBLASLT_LOOK(Create)
  ACCORD_CUBLASLT_LOOK(Matmul)
  ACCORD_CUBLASLT_LOOK(MatmulDescCreate)
  ACCORD_CUBLASLT_LOOK(MatmulDescDestroy)
  ACCORD_CUBLASLT_LOOK(MatmulDescSetAttribute)
  ACCORD_CUBLASLT_LOOK(MatrixLayoutCreate)
  ACCORD_CUBLASLT_LOOK(MatrixLayoutDestroy)
  ACCORD_CUBLASLT_LOOK(MatrixLayoutSetAttribute)
  ACCORD_CUBLASLT_LOOK(MatmulPreferenceCreate)
  ACCORD_CUBLASLT_LOOK(MatmulPreferenceDestroy)
  ACCORD_CUBLASLT_LOOK(MatmulPreferenceSetAttribute)
  ACCORD_CUBLASLT_LOOK(MatmulAlgoGetHeuristic)
#undef ACCORD_CUBLASLT_LOOK
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
    return Status(StatusCode::kUnsupported, fmt::format("{} is cuBLASLt {}, this build is for {}.x", library->path,
                                                        library->version, CUBLAS_VER_MAJOR));
  return std::unique_ptr<const BlasLibrary>(std::move(library));
}

Result<std::unique_ptr<const BlasLibrary>> search() {
  ACCORD_RETURN_IF_ERROR(config().status());
  if (!config()->cublaslt.empty()) {
    Result<std::unique_ptr<const BlasLibrary>> given = load_blas_library(config()->cublaslt);
    return given.ok() ? std::move(given) : given.status().with_context("environment variable ACCORD_CUBLASLT");
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
                fmt::format("cuBLASLt was not found (ACCORD_CUBLASLT names its library){}", tried));
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
