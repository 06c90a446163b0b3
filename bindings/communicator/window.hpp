#pragma once
// accord.Window and accord.WindowArray.

#include <nanobind/nanobind.h>

#include <memory>

#include "accord/window.hpp"
#include "bindings/arguments/array_protocols.hpp"
#include "bindings/interpreter/process.hpp"

namespace accord::python {

namespace nb = nanobind;

/// The contents of a Python Window.
struct WindowHandle {
  explicit WindowHandle(Window made) : window(std::move(made)) {}
  ProcessBound<Window> window;

  Window& use() { return window.use("this window"); }
};

/// An array in a window's memory: an allocated piece, or all of a rank's contribution.
struct WindowArray {
  /// `owner`: keeps the memory in place.
  WindowArray(std::shared_ptr<const void> owner_, ArrayMemory memory_)
      : owner(std::move(owner_)), memory(std::move(memory_)) {}

  ProcessBound<std::shared_ptr<const void>> owner;
  ArrayMemory memory;
};

void bind_window(nb::module_& module);

}  // namespace accord::python
