#pragma once
// accord.OutputArray: an output of an engine, used in place.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "accord/engine.hpp"
#include "bindings/arguments/array_protocols.hpp"

namespace accord::python {

namespace nb = nanobind;

/// Counts the runs of one context; an output uses it to detect whether it is still valid.
struct RunCount {
  std::uint64_t runs = 0;
};

/// A read-only view of an engine's output. It keeps the context's memory alive. Once the context runs again, access
/// raises WrongState, while views that were created earlier then show other values.
class OutputArray {
 public:
  /// `owner`: keeps the output alive; `count` counts its context's runs.
  OutputArray(std::shared_ptr<void> owner, std::shared_ptr<const RunCount> count, TensorView output);

  /// Throws WrongState if the output is no longer valid.
  ArrayMemory& memory();
  /// Its dtype and shape, which stay valid.
  const ArrayMemory& description() const { return memory_; }

 private:
  std::shared_ptr<void> owner_;
  std::shared_ptr<const RunCount> count_;
  std::uint64_t run_;
  ArrayMemory memory_;
};

void bind_output_array(nb::module_& module);

}  // namespace accord::python
