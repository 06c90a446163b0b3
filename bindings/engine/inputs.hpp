#pragma once
// The inputs of an engine's run from Python.

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "accord/engine.hpp"
#include "bindings/arguments/array.hpp"

namespace accord::python {

/// The inputs of a call, by position and by name, held as long as the call. TypeError if one is missing, given twice
/// or unknown.
struct GivenInputs {
  /// `memory`: kCpu, or kOrderedDevice for an engine on a GPU.
  GivenInputs(const std::vector<TensorInfo>& inputs, Memory memory, const nanobind::args& given,
              const nanobind::kwargs& named);

  std::vector<nanobind::object> objects;
  std::vector<std::unique_ptr<ArrayView>> arrays;
  std::vector<TensorView> views;
  Stream stream;  ///< of the engine's GPU; inputs on the GPU are ready in its order
};

}  // namespace accord::python
