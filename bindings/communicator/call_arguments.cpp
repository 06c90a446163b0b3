#include "bindings/communicator/call_arguments.hpp"

#include <nanobind/stl/complex.h>

#include <string>

#include "bindings/arguments/integers.hpp"
#include "bindings/arguments/stream.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {

CallArguments::CallArguments(const ByName& by_name) : dtype_(dtype_argument(by_name.dtype)) {
  options.timeout = duration_argument(by_name.timeout);
  options.stream = stream_argument(by_name.stream);
}

Buffer CallArguments::input(nb::handle array, std::string_view argument, Access access) {
  return array.is_none() ? Buffer{} : input_.emplace(array, argument, access, dtype_, Memory::kAnyDevice).buffer();
}

Buffer CallArguments::output(nb::handle array, std::string_view argument) {
  return array.is_none() ? Buffer{}
                         : output_.emplace(array, argument, Access::kWrite, dtype_, Memory::kAnyDevice).buffer();
}

namespace {

std::vector<std::size_t> read_counts(nb::handle counts, std::string_view argument) {
  std::vector<std::size_t> read;
  if (counts.is_none()) return read;
  for (const nb::handle count : counts) read.push_back(size_argument(count, argument, "a count of elements"));
  return read;
}

}  // namespace

std::span<const std::size_t> CallArguments::input_counts(nb::handle counts, std::string_view argument) {
  return input_counts_ = read_counts(counts, argument);
}

std::span<const std::size_t> CallArguments::output_counts(nb::handle counts, std::string_view argument) {
  return output_counts_ = read_counts(counts, argument);
}

Reduction CallArguments::reduction(std::string_view name, nb::handle factor) {
  const ReduceOp op = value_or_raise(reduce_op_from_string(name));
  if (op != ReduceOp::kPremulSum) {
    if (!factor.is_none()) raise_invalid("factor: only premul_sum takes one, not " + std::string(name));
    return op;
  }
  if (factor.is_none()) raise_invalid("factor: premul_sum needs one: a number, or an array of one element");
  if (PyFloat_Check(factor.ptr()) || PyLong_Check(factor.ptr()) || PyComplex_Check(factor.ptr())) {
    const std::complex<double> number(PyComplex_RealAsDouble(factor.ptr()), PyComplex_ImagAsDouble(factor.ptr()));
    if (PyErr_Occurred() != nullptr) throw nb::python_error();  // an integer that is too large for a float
    return Reduction::premul_sum(number);
  }
  return Reduction::premul_sum(
      ConstBuffer(factor_.emplace(factor, "factor", Access::kRead, dtype_, Memory::kAnyDevice).buffer()));
}

}  // namespace accord::python
