#pragma once
// Integers as arguments, where the range is not that of a C++ type that nanobind could name in an error.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/interpreter/status.hpp"

namespace accord::python {

namespace nb = nanobind;

/// Raises Python's own error for a value that is not a 64-bit integer.
inline std::int64_t integer_of(nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const std::int64_t number = PyLong_AsLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

/// Returns one integer, or those in a list, in an array or tensor of one dimension, or in any other iterable. Raises
/// Python's own error for anything else.
inline std::vector<std::int64_t> integers_of(nb::handle value) {
  const nb::object items = nb::steal(PyObject_GetIter(value.ptr()));
  if (!items.is_valid()) {  // arrays without dimensions have __iter__, but it fails
    PyErr_Clear();
    return {integer_of(value)};
  }
  std::vector<std::int64_t> numbers;
  for (const nb::handle item : value) numbers.push_back(integer_of(item));
  return numbers;
}

/// Raises InvalidArgument if the value is negative, too large or not an integer; the error names `argument` and says
/// that the value is not `what`, such as "a number of bytes".
inline std::size_t size_argument(nb::handle value, std::string_view argument, std::string_view what) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  const std::size_t size = index.is_valid() ? PyLong_AsSize_t(index.ptr()) : 0;
  if (PyErr_Occurred() == nullptr) return size;
  PyErr_Clear();
  raise_invalid(std::string(argument) + ": " + nb::cast<std::string>(nb::repr(value)) + " is not " + std::string(what));
}

}  // namespace accord::python
