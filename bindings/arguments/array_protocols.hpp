#pragma once
// Exports accord's memory as arrays for other libraries: through the buffer protocol, through DLPack, as NumPy
// arrays.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "bindings/arguments/array.hpp"

namespace accord::python {

namespace nb = nanobind;

/// A row-major array over memory that a Python object keeps in place.
class ArrayMemory {
 public:
  /// `access`: the access that consumers have.
  ArrayMemory(void* data, DType dtype, std::vector<std::int64_t> shape, Access access);

  DType dtype() const { return dtype_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }

  /// Implements bf_getbuffer of `self`, which owns the memory: it is held as long as the view. REQUIRES: this lives
  /// as long as `self`.
  int export_buffer(PyObject* self, Py_buffer* view, int flags) noexcept;
  /// Implements `self.__dlpack__(**options)`.
  nb::object export_dlpack(nb::handle self, const nb::kwargs& options) const;
  /// Implements `self.__array__(dtype, copy)`.
  nb::object export_numpy(nb::handle self, nb::handle dtype, nb::handle copy) const;
  nb::tuple shape_tuple() const;
  /// Extent of the first dimension; TypeError without dimensions.
  Py_ssize_t length() const;
  /// Returns "<accord.WindowArray float32 (3, 4)>", for example.
  std::string repr(std::string_view type) const;

 private:
  void* data_;
  DType dtype_;
  Access access_;
  std::vector<std::int64_t> shape_;
  std::size_t bytes_;
  // In the buffer protocol's units: elements and bytes.
  std::vector<Py_ssize_t> extents_;
  std::vector<Py_ssize_t> strides_;
};

/// Adds the methods that all arrays of accord have to `array`. `describe` returns the memory of a T; `memory_of`
/// returns that of a handle to one, and may reject access.
template <typename T, typename Describe, typename MemoryOf>
void def_array_protocols(nb::class_<T>& array, const char* name, Describe describe, MemoryOf memory_of) {
  array
      .def_prop_ro(
          "shape", [describe](T& self) { return describe(self).shape_tuple(); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Extents of the dimensions, row-major.")
      .def_prop_ro(
          "dtype", [describe](T& self) { return std::string(to_string(describe(self).dtype())); },
          "The dtype's name, such as \"float32\".")
      .def("__len__", [describe](T& self) { return describe(self).length(); })
      .def(
          "__array__",
          [memory_of](nb::handle self, nb::handle dtype, nb::handle copy) {
            return memory_of(self).export_numpy(self, dtype, copy);
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
          nb::sig("def __array__(self, dtype: object = None, copy: bool | None = None) -> typing.Any"))
      .def(
          "__dlpack__",
          [memory_of](nb::handle self, const nb::kwargs& options) {
            return memory_of(self).export_dlpack(self, options);
          },
          nb::sig("def __dlpack__(self, **kwargs: typing.Any) -> typing.Any"))
      .def(
          "__dlpack_device__", [](T&) { return nb::make_tuple(nb::device::cpu::value, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("__repr__", [describe, name](T& self) { return describe(self).repr(name); });
}

}  // namespace accord::python
