#pragma once
// Rendezvous stores for Python.

#include <nanobind/nanobind.h>

#include <memory>

#include "accord/store.hpp"

namespace accord::python {

namespace nb = nanobind;

void bind_stores(nb::module_& module);

/// Returns the store behind a Python argument: an accord.Store, or any object with set, get and add (see
/// make_python_store). Raises TypeError for anything else.
std::shared_ptr<Store> store_argument(nb::handle object);

/// Creates a Store that calls a Python object, from any thread: set(key: str, value: bytes), get(key: str) -> bytes,
/// str or None, add(key: str, amount: int) -> int. A key counts as not set yet if check([key]) is false, where that
/// method exists (torch's stores), or else if get returns None or raises LookupError. delete_key(key) or erase(key)
/// is optional. Any other exception becomes kIo with its text.
std::shared_ptr<Store> make_python_store(nb::object object);

}  // namespace accord::python
