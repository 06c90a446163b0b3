// Opens libnccl.so.2 by the loader's own search (LD_LIBRARY_PATH, ld.so.cache, or already in the process), asks
// ncclGetVersion, and closes it. NCCL numbers its versions major * 10000 + minor * 100 + patch since 2.9, before that
// major * 1000 + ...
#include "c/nccl_probe.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

namespace accord::c {

Result<std::string> find_nccl() {
  constexpr const char* kLibrary = "libnccl.so.2";
  const auto close = [](void* library) { dlclose(library); };
  const std::unique_ptr<void, decltype(close)> library(dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL), close);
  if (library == nullptr) return Status(StatusCode::kNotFound, fmt::format("not found: {}", dlerror()));

  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(library.get(), "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0 || version <= 0) {
    return Status(StatusCode::kUnsupported, fmt::format("{} does not tell its version by ncclGetVersion", kLibrary));
  }
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int rest = version >= 10000 ? version % 10000 : version % 1000;

  Dl_info place = {};
  const bool placed = dladdr(reinterpret_cast<void*>(get_version), &place) != 0 && place.dli_fname != nullptr;
  return fmt::format("{}.{}.{} ({})", major, rest / 100, rest % 100, placed ? place.dli_fname : kLibrary);
}

}  // namespace accord::c
