#pragma once
// How DLPack's producers are asked: by the C function table of their types, and for where their memory lies.

#include <nanobind/nanobind.h>

#include <cstdint>

#include "array.hpp"

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

/// The C function table of DLPack that `object`'s type offers, null if none. The last type is remembered.
const DlpackExchange* exchange_of(nb::handle object);
/// Whether `object` says that its memory is a GPU's.
bool says_cuda(nb::handle object);

}  // namespace accord::python
