#pragma once
// What Python gives an engine to run on.

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "accord/engine.hpp"
#include "array.hpp"

namespace accord::python {

/// The inputs of a call, by position and by name, kept as long as it lasts. TypeError if one is missing, given twice or unknown.
struct GivenInputs {
  /// `memory`: kCpu, or kOrderedDevice for an engine on a GPU.
  GivenInputs(const std::vector<TensorInfo>& inputs, Memory memory, const nanobind::args& given,
              const nanobind::kwargs& named);

  std::vector<nanobind::object> objects;
  std::vector<std::unique_ptr<ArrayView>> arrays;
  std::vector<TensorView> views;
  Stream stream;  ///< of the engine's GPU, behind which inputs that lie there are ready
};

}  // namespace accord::python
