#pragma once
// Whole numbers as arguments, for those whose range is not that of a C++ type that nanobind could name in an error.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "status.hpp"

namespace accord::python {

namespace nb = nanobind;

/// What is no whole number of 64 bits is Python's own error.
inline std::int64_t integer_of(nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const std::int64_t number = PyLong_AsLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

/// A whole number, or those in a list, in an array or tensor of one dimension, or in whatever else gives one after
/// the other. Others are Python's own error.
inline std::vector<std::int64_t> integers_of(nb::handle value) {
  const nb::object items = nb::steal(PyObject_GetIter(value.ptr()));
  if (!items.is_valid()) {  // arrays without dimensions say so when they are asked
    PyErr_Clear();
    return {integer_of(value)};
  }
  std::vector<std::int64_t> numbers;
  for (const nb::handle item : value) numbers.push_back(integer_of(item));
  return numbers;
}

/// InvalidArgument that names `argument` and what it is no `what`, "number of bytes", if it is negative, too large or no whole number.
inline std::size_t size_argument(nb::handle value, std::string_view argument, std::string_view what) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  const std::size_t size = index.is_valid() ? PyLong_AsSize_t(index.ptr()) : 0;
  if (PyErr_Occurred() == nullptr) return size;
  PyErr_Clear();
  raise_invalid(std::string(argument) + ": " + nb::cast<std::string>(nb::repr(value)) + " is no " + std::string(what));
}

}  // namespace accord::python
