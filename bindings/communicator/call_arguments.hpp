#pragma once
// The arguments of a call from Python.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "bindings/arguments/array.hpp"
#include "bindings/arguments/duration.hpp"

namespace accord::python {

namespace nb = nanobind;

/// A call from Python: the operation, and the arrays whose memory it uses, which are held in place while this lives.
class CallArguments {
 public:
  /// Arguments that every call also takes, or None.
  struct ByName {
    nb::handle timeout = Py_None;
    nb::handle dtype = Py_None;   ///< of all arrays, see ArrayView
    nb::handle stream = Py_None;  ///< see stream_argument()
  };
  explicit CallArguments(const ByName& by_name);

  /// Each returns the memory of an array. For None nothing is held and the buffer is empty.
  Buffer input(nb::handle array, std::string_view argument, Access access = Access::kRead);
  Buffer output(nb::handle array, std::string_view argument);
  /// Read the counts of the parts of input or output, a sequence of integers; None gives none. InvalidArgument names
  /// `argument`.
  std::span<const std::size_t> input_counts(nb::handle counts, std::string_view argument);
  std::span<const std::size_t> output_counts(nb::handle counts, std::string_view argument);
  /// Returns the reduction of that name. `factor`: a number or an array of one element for premul_sum, and None for
  /// all other reductions, else InvalidArgument.
  Reduction reduction(std::string_view op, nb::handle factor);

  Call call;
  CallOptions options;

 private:
  std::optional<DType> dtype_;
  std::optional<ArrayView> input_;
  std::optional<ArrayView> output_;
  std::optional<ArrayView> factor_;
  std::vector<std::size_t> input_counts_;
  std::vector<std::size_t> output_counts_;
};

/// The arguments of one operation, or of several that run together.
using HeldArguments = std::vector<std::shared_ptr<const CallArguments>>;

}  // namespace accord::python
