// A timedelta is read through its total_seconds(), so its module need not be imported.
#include "bindings/arguments/duration.hpp"

#include <cmath>
#include <string>

#include "bindings/interpreter/status.hpp"

namespace accord::python {

std::optional<Duration> duration_argument(nb::handle value, std::string_view argument) {
  if (value.is_none()) return std::nullopt;
  const nb::object number = nb::hasattr(value, "total_seconds") ? value.attr("total_seconds")() : nb::borrow(value);
  if (PyNumber_Check(number.ptr()) == 0)
    throw nb::type_error((std::string(argument) + ": expected seconds as a number, or a datetime.timedelta, got " +
                          nb::type_name(value.type()).c_str())
                             .c_str());
  const double seconds = PyFloat_AsDouble(number.ptr());
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (!(seconds >= 0))
    raise_invalid(std::string(argument) + ": " + nb::cast<std::string>(nb::str(value)) +
                  " is not a number of seconds to wait");
  constexpr double kMaxSeconds = 9e9;  // about the 292 years that 64 bits of nanoseconds hold
  if (seconds >= kMaxSeconds) return Duration::max();
  return Duration(static_cast<Duration::rep>(seconds * 1e9));
}

}  // namespace accord::python
