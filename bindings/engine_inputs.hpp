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
  GivenInputs(const std::vector<TensorInfo>& inputs, const nanobind::args& given, const nanobind::kwargs& named);

  std::vector<nanobind::object> objects;
  std::vector<std::unique_ptr<ArrayView>> arrays;
  std::vector<TensorView> views;
};

}  // namespace accord::python
