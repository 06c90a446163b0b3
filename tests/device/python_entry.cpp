// The functions of this library that Python tests call through ctypes: devices over host memory for accord's library
// in that process.
#include <dlfcn.h>

#include <cstring>

#include "device/host_blas.hpp"
#include "device/host_runtime.hpp"
#include "device/nccl_control.hpp"

using accord::Device;
using accord::DeviceType;
using accord::testing::HostRuntime;

extern "C" {

/// Gives the devices to accord's library, which the process has loaded as `library`. Returns 0 on success.
int accord_test_use_devices(const char* library) {
  void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return 1;
  using Replace = void (*)(DeviceType, accord::device::Runtime*);
  const auto replace =
      reinterpret_cast<Replace>(dlsym(loaded, "_ZN6accord6device15replace_runtimeENS_10DeviceTypeEPNS0_7RuntimeE"));
  if (replace == nullptr) return 2;
  replace(DeviceType::kCuda, &HostRuntime::instance());
  using ReplaceBlas = void (*)(DeviceType, accord::device::Blas*);
  const auto replace_blas =
      reinterpret_cast<ReplaceBlas>(dlsym(loaded, "_ZN6accord6device12replace_blasENS_10DeviceTypeEPNS0_4BlasE"));
  if (replace_blas == nullptr) return 3;
  replace_blas(DeviceType::kCuda, &accord::testing::HostBlas::instance());
  return 0;
}

/// Sets whether the library of products takes float8 scales, as on a Hopper; 1 at first.
void accord_test_take_scales(int takes) { accord::testing::HostBlas::instance().set_takes_scales(takes != 0); }

/// Sets the float8 products for which the library has kernels, as a HostBlas::Float8; 0 at first.
void accord_test_take_float8(int takes) {
  using accord::testing::HostBlas;
  HostBlas::instance().set_takes_float8(static_cast<HostBlas::Float8>(takes));
}

/// Returns the number of products that were put into streams.
int accord_test_products() { return accord::testing::HostBlas::instance().products(); }

/// Returns the bytes that are allocated on a device.
std::size_t accord_test_bytes(int device) {
  return HostRuntime::instance().bytes_on({DeviceType::kCuda, static_cast<std::int16_t>(device)});
}

void* accord_test_allocate(int device, std::size_t bytes) {
  const auto memory = HostRuntime::instance().allocate({DeviceType::kCuda, static_cast<std::int16_t>(device)}, bytes);
  return memory.ok() ? *memory : nullptr;
}

void* accord_test_stream(int device) {
  const auto stream =
      HostRuntime::instance().create_stream({DeviceType::kCuda, static_cast<std::int16_t>(device)}, false);
  return stream.ok() ? stream->handle : nullptr;
}

/// Sets the calling thread's current device.
void accord_test_current_device(int device) { HostRuntime::set_current_device(device); }

int accord_test_synchronize(int device, void* stream) {
  return HostRuntime::instance().synchronize({DeviceType::kCuda, static_cast<std::int16_t>(device)}, {stream}).ok() ? 0
                                                                                                                    : 1;
}

/// Makes later work in the stream wait for what is in the other one. Returns 0 on success.
int accord_test_wait_stream(int device, void* stream, void* other) {
  HostRuntime& runtime = HostRuntime::instance();
  const Device at{DeviceType::kCuda, static_cast<std::int16_t>(device)};
  const auto end = runtime.mark(at, {other});
  return end.ok() && runtime.follow(*end, at, {stream}).ok() ? 0 : 1;
}

/// Holds back later work in the stream until accord_test_release() is called with the result.
void* accord_test_hold(int device, void* stream) {
  return new accord::testing::BusyStream(
      HostRuntime::instance().make_stream_busy({stream}, {DeviceType::kCuda, static_cast<std::int16_t>(device)}));
}

void accord_test_release(void* busy) { delete static_cast<accord::testing::BusyStream*>(busy); }

/// Returns the bytes that have been copied from devices to the CPU.
std::size_t accord_test_copied_to_host() { return HostRuntime::instance().copied_to_host(); }

/// Writes the rank's NCCL calls, one per line, to `text`, cut to `size`, and returns the length of all of them.
std::size_t accord_test_log(int rank, char* text, std::size_t size) {
  std::string all;
  for (const std::string& line : accord::testing::log_of(rank)) all += line + "\n";
  if (size > 0) text[all.copy(text, size - 1)] = '\0';
  return all.size();
}

}  // extern "C"
