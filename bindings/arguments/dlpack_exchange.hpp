#pragma once
// Access to DLPack producers: through the C function table of their types, and their device queries.

#include <nanobind/nanobind.h>

#include <cstdint>

#include "bindings/arguments/array.hpp"

namespace accord::python {

inline constexpr int kDlpackCpu = 1;
inline constexpr int kDlpackCuda = 2;
inline constexpr int kDlpackCudaHost = 3;
inline constexpr int kDlpackCudaManaged = 13;

/// The head of DLPack's C function table (1.3), as far as it is used here.
struct DlpackExchange {
  std::uint32_t major;
  std::uint32_t minor;
  DlpackExchange* previous;
  void* allocate;
  int (*from_object)(void* object, DlpackVersioned** tensor);
  void* to_object;
  void* describe;
  int (*current_stream)(int device_type, std::int32_t device_index, void** stream);
};

/// Returns the DLPack C function table of `object`'s type, null if it has none. Caches the last type.
const DlpackExchange* exchange_of(nb::handle object);
/// Whether `object` reports that its memory is on a GPU.
bool reports_cuda(nb::handle object);

}  // namespace accord::python
