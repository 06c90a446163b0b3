#pragma once
// accord.OutputArray: an output of an engine, where the engine left it.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accord/engine.hpp"

namespace accord::python {

namespace nb = nanobind;

/// Counts the runs of one context; an output knows by it whether it is still there.
struct RunCount {
  std::uint64_t runs = 0;
};

/// A read-only view of an engine's output. It keeps the context's memory alive; once the context runs again, it refuses to be
/// looked at (WrongState), while views that were made before then show other values.
class OutputArray {
 public:
  /// `memory`: keeps the output alive. `run`: the count of the run that made it.
  OutputArray(std::shared_ptr<void> memory, std::shared_ptr<const RunCount> count, TensorView output);

  /// Throws WrongState if the output is gone.
  const Buffer& buffer() const;
  DType dtype() const { return output_.buffer.dtype; }
  const std::vector<std::int64_t>& shape() const { return output_.shape; }

  // As the buffer protocol gives them: elements and bytes; they live as long as this.
  Py_ssize_t* extents() { return extents_.data(); }
  Py_ssize_t* strides() { return strides_.data(); }

 private:
  std::shared_ptr<void> memory_;
  std::shared_ptr<const RunCount> count_;
  std::uint64_t run_;
  TensorView output_;
  std::vector<Py_ssize_t> extents_;
  std::vector<Py_ssize_t> strides_;
};

void bind_output_array(nb::module_& module);

}  // namespace accord::python
