#pragma once
// Converts Status to Python exceptions; the only place where accord throws.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // here, so that every file converts text alike
#include <nanobind/stl/string_view.h>

#include <string>
#include <utility>

#include "accord/status.hpp"

namespace accord::python {

namespace nb = nanobind;

/// Adds accord.Error and one subclass for each StatusCode to `module`.
void bind_errors(nb::module_& module);

/// Returns the Python exception for `status`; None if it is ok. REQUIRES: the GIL.
nb::object exception_for(const Status& status);

/// Throws the Python exception for `status`, unless a signal handler has an exception to raise (KeyboardInterrupt),
/// which takes precedence. REQUIRES: the GIL; !status.ok().
[[noreturn]] void raise(const Status& status);

/// Throws accord.InvalidArgument with `message`.
[[noreturn]] void raise_invalid(std::string message);

inline void raise_if_error(const Status& status) {
  if (!status.ok()) [[unlikely]]
    raise(status);
}

template <typename T>
T value_or_raise(Result<T> result) {
  raise_if_error(result.status());
  return std::move(result).value();
}

}  // namespace accord::python
