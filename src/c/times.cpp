// A negative time does not mean "forever": it is rejected, and the error names the value to use instead.
#include "c/times.hpp"

#include <fmt/format.h>

namespace accord::c {

Result<Duration> wait_of(std::int64_t nanoseconds, std::string_view function, std::string_view argument) {
  if (nanoseconds >= 0) return Duration(nanoseconds);
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: {} is {}, expected at least 0 (INT64_MAX never ends)",
                                                          function, argument, nanoseconds));
}

Result<std::optional<Duration>> timeout_of(std::int64_t nanoseconds, std::string_view function,
                                           std::string_view argument) {
  if (nanoseconds == 0) return std::optional<Duration>();
  ACCORD_ASSIGN_OR_RETURN(const Duration timeout, wait_of(nanoseconds, function, argument));
  return std::optional<Duration>(timeout);
}

}  // namespace accord::c
