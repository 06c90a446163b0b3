#pragma once
// The driver's own API, for what the CUDA runtime cannot do without side effects: querying memory and selecting a
// device. The library is loaded and its symbols are looked up at run time, so a build with CUDA starts on machines
// without a driver.

#include <cuda.h>

#include <string_view>

#include "accord/status.hpp"

namespace accord::device::cuda {

struct Driver {
  decltype(&cuInit) init;
  decltype(&cuGetErrorString) get_error_string;
  decltype(&cuDeviceGetCount) device_get_count;
  decltype(&cuDeviceGet) device_get;
  decltype(&cuDevicePrimaryCtxRetain) primary_context_retain;
  decltype(&cuCtxGetCurrent) context_get_current;
  decltype(&cuCtxPushCurrent) context_push_current;
  decltype(&cuCtxPopCurrent) context_pop_current;
  decltype(&cuPointerGetAttributes) pointer_get_attributes;
  void* library;

  /// Like status_of() for errors of the CUDA runtime.
  Status status_of(std::string_view call, CUresult result) const;
};

/// Looks up a symbol. Fails with kUnsupported if the driver's library lacks it.
template <typename Function>
Status look_up(void* library, const char* name, Function& function) {
  void* found = nullptr;
  ACCORD_RETURN_IF_ERROR(look_up(library, name, found));
  function = reinterpret_cast<Function>(found);
  return {};
}
template <>
Status look_up<void*>(void* library, const char* name, void*& function);

/// Returns the initialized driver, always the same object. Fails with kUnsupported, with the reason, if there is
/// none; the next call then tries again.
Result<const Driver*> driver();

}  // namespace accord::device::cuda
