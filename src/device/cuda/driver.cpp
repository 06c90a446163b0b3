// The loader's own search finds libcuda.so.1; the CUDA runtime, which loads it too, finds the same file. Symbols are
// looked up in the versions that match their types in cuda.h.
#include "device/cuda/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <mutex>

namespace accord::device::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Result<Driver> load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    return Status(StatusCode::kUnsupported, fmt::format("no NVIDIA driver was found: {}", dlerror()));
  }
  Driver driver = {};
  driver.library = library;
  for (const Status& found : {
           look_up(library, "cuInit", driver.init),
           look_up(library, "cuGetErrorString", driver.get_error_string),
           look_up(library, "cuDeviceGetCount", driver.device_get_count),
           look_up(library, "cuDeviceGet", driver.device_get),
           look_up(library, "cuDevicePrimaryCtxRetain", driver.primary_context_retain),
           look_up(library, "cuCtxGetCurrent", driver.context_get_current),
           look_up(library, "cuCtxPushCurrent_v2", driver.context_push_current),
           look_up(library, "cuCtxPopCurrent_v2", driver.context_pop_current),
           look_up(library, "cuPointerGetAttributes", driver.pointer_get_attributes),
       })
    ACCORD_RETURN_IF_ERROR(found);
  if (const Status initialized = driver.status_of("cuInit", driver.init(0)); !initialized.ok()) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("the NVIDIA driver cannot be initialized: {}", initialized.message()));
  }
  return driver;
}

}  // namespace

template <>
Status look_up<void*>(void* library, const char* name, void*& function) {
  function = dlsym(library, name);
  if (function != nullptr) return {};
  return Status(StatusCode::kUnsupported, fmt::format("the NVIDIA driver's {} has no {}", kLibrary, name));
}

Status Driver::status_of(std::string_view call, CUresult result) const {
  if (result == CUDA_SUCCESS) return {};
  const char* text = nullptr;
  if (get_error_string(result, &text) != CUDA_SUCCESS) text = "unknown error";
  const bool no_memory = result == CUDA_ERROR_OUT_OF_MEMORY;
  return Status(no_memory ? StatusCode::kResourceExhausted : StatusCode::kInternal, fmt::format("{}: {}", call, text));
}

Result<const Driver*> driver() {
  static std::mutex mutex;
  static std::atomic<const Driver*> loaded = nullptr;
  if (const Driver* const ready = loaded.load(std::memory_order_acquire)) return ready;
  const std::lock_guard lock(mutex);
  if (const Driver* const ready = loaded.load(std::memory_order_acquire)) return ready;
  ACCORD_ASSIGN_OR_RETURN(Driver found, load());
  loaded.store(new Driver(found), std::memory_order_release);  // never freed, for threads that outlive static objects
  return loaded.load();
}

}  // namespace accord::device::cuda
