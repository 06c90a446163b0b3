#pragma once
// The driver's own calls, for what the CUDA runtime cannot do without a trace: to look at memory, and to use a device. Its library is
// loaded at run time, and so are its symbols found: a build with CUDA starts where there is no driver.

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

  /// As status_of() of the runtime's errors.
  Status status_of(std::string_view call, CUresult said) const;
};

/// kUnsupported if the driver's library has no such symbol.
template <typename Function>
Status look_up(void* library, const char* name, Function& function) {
  void* found = nullptr;
  ACCORD_RETURN_IF_ERROR(look_up(library, name, found));
  function = reinterpret_cast<Function>(found);
  return {};
}
template <>
Status look_up<void*>(void* library, const char* name, void*& function);

/// Initialized, and the same from then on. kUnsupported says why there is none; the next call looks again.
Result<const Driver*> driver();

}  // namespace accord::device::cuda
