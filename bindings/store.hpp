#pragma once
// Rendezvous stores for Python.

#include <nanobind/nanobind.h>

#include <memory>

#include "accord/store.hpp"

namespace accord::python {

namespace nb = nanobind;

void bind_stores(nb::module_& module);

/// The store behind a Python argument: an accord.Store, or any object with set, get and add (see make_python_store).
/// TypeError for anything else.
std::shared_ptr<Store> store_argument(nb::handle object);

/// A Store that calls a Python object, from any thread: set(key: str, value: bytes), get(key: str) -> bytes, str or None,
/// add(key: str, amount: int) -> int. A key that is not set yet: check([key]) is false, where there is one (torch's
/// stores), else get gives None or raises LookupError. delete_key(key) or erase(key) is optional. What else it raises becomes
/// kIo with its text.
std::shared_ptr<Store> make_python_store(nb::object object);

}  // namespace accord::python
