#pragma once
// Memory of accord's as arrays that others understand: by the buffer protocol, by DLPack, as NumPy's.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "array.hpp"

namespace accord::python {

namespace nb = nanobind;

/// A row-major array over memory that a Python object keeps in place.
class ArrayMemory {
 public:
  /// `access`: what consumers may do.
  ArrayMemory(void* data, DType dtype, std::vector<std::int64_t> shape, Access access);

  DType dtype() const { return dtype_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }

  /// bf_getbuffer of `self`, which owns the memory: it is held while the view is. REQUIRES: this lives as long as `self`.
  int give_buffer(PyObject* self, Py_buffer* view, int flags) noexcept;
  /// `self.__dlpack__(**options)`.
  nb::object give_dlpack(nb::handle self, const nb::kwargs& options) const;
  /// `self.__array__(dtype, copy)`.
  nb::object give_numpy(nb::handle self, nb::handle dtype, nb::handle copy) const;
  nb::tuple shape_tuple() const;
  /// Of the first dimension; TypeError without one.
  Py_ssize_t length() const;
  /// "<accord.WindowArray float32 (3, 4)>".
  std::string repr(std::string_view type) const;

 private:
  void* data_;
  DType dtype_;
  Access access_;
  std::vector<std::int64_t> shape_;
  std::size_t bytes_;
  // As the buffer protocol gives them: elements and bytes.
  std::vector<Py_ssize_t> extents_;
  std::vector<Py_ssize_t> strides_;
};

}  // namespace accord::python
