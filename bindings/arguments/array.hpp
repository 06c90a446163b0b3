#pragma once
// The memory of Python objects as accord's buffers: used in place, never copied.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "accord/buffer.hpp"

namespace accord::python {

namespace nb = nanobind;

enum class Access : std::uint8_t { kRead, kWrite };
/// The memory that a call can use.
enum class Memory : std::uint8_t {
  kCpu,
  kAnyDevice,      ///< if the caller orders streams
  kOrderedDevice,  ///< if stream() is ordered after the pending work of the array's owner
};

/// DLPack's structure that owns a tensor, in the layout of its versions from 1.0 on.
struct DlpackVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(DlpackVersioned*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};

/// The same before 1.0.
struct DlpackUnversioned {
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(DlpackUnversioned*);
};

struct DlpackExchange;

/// One array argument of a call: an object with the buffer protocol (NumPy arrays, bytearray, memoryview,
/// array.array) or with DLPack (torch tensors). Holds the object's memory in place while it lives. REQUIRES: the GIL,
/// also for destruction.
///
/// Throws, naming `argument`: TypeError for an object that is not an array or does not have a dtype of accord;
/// InvalidArgument for an array that is not contiguous, not writable (kWrite) or not in native byte order;
/// Unsupported for an array on a device (kCpu: on any device; kAnyDevice: on one that is not a CUDA device). `dtype`
/// ("bfloat16" over uint16, "float8_e5m2" over uint8, any over bytes) reads its memory as that type, of the same
/// width.
class ArrayView {
 public:
  ArrayView(nb::handle object, std::string_view argument, Access access, std::optional<DType> dtype = std::nullopt,
            Memory memory = Memory::kCpu);
  ~ArrayView();
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  const Buffer& buffer() const { return buffer_; }
  std::vector<std::int64_t> shape() const;
  /// For kOrderedDevice, on a GPU: a stream in which the memory is ready; null is the GPU's default stream.
  Stream stream() const { return stream_; }

 private:
  bool acquire_buffer(nb::handle object, std::string_view argument, Access access, std::optional<DType> dtype);
  void acquire_dlpack(nb::handle object, std::string_view argument, Memory memory);
  void find_stream(const DlpackExchange& exchange, std::string_view argument);
  void read_dlpack(const nb::dlpack::dltensor& tensor, bool read_only, std::string_view argument, Access access,
                   std::optional<DType> dtype, Memory memory);
  /// True if it has elements, but no memory.
  bool lacks_memory() const;
  void release();

  Buffer buffer_;
  Stream stream_;
  Py_buffer view_{};
  DlpackVersioned* versioned_ = nullptr;
  DlpackUnversioned* unversioned_ = nullptr;
};

/// Returns the buffer-protocol format of a dtype ("f" for float32), null if it has none (bfloat16 and 8-bit floats).
const char* buffer_format(DType dtype);
nb::dlpack::dtype dlpack_dtype(DType dtype);

/// Reads None or a dtype's name.
std::optional<DType> dtype_argument(nb::handle name);

}  // namespace accord::python
