#pragma once
// The frame of every function of the C interface: it rejects null arguments by name, converts the Status to the
// return value and to this thread's last error, and lets no exception escape.

#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>

#include "accord/accord.h"
#include "accord/status.hpp"

namespace accord::c {

/// Returns the status's code. A failure becomes this thread's accord_last_error(). Allocates nothing.
accord_status_t record_status(const Status& status) noexcept;

/// An argument that must not be null.
struct RequiredArgument {
  std::string_view name;
  const void* value;
};

/// Returns the status for an out-of-memory condition, which is created in advance.
accord_status_t record_out_of_memory() noexcept;

/// Returns kInvalidArgument: "accord_run: communicator is null".
Status null_argument(std::string_view function, std::string_view name);

/// Returns kInvalidArgument: "accord_run: `why`".
Status invalid_argument(std::string_view function, std::string_view why);

/// Returns the result of `body(function)`, unless a required argument is null. Catches the standard library's
/// exceptions.
template <typename Body>
accord_status_t answer(std::string_view function, std::initializer_list<RequiredArgument> required,
                       Body&& body) noexcept {
  try {
    for (const RequiredArgument& argument : required)
      if (argument.value == nullptr) return record_status(null_argument(function, argument.name));
    return record_status(body(function));
  } catch (const std::bad_alloc&) {
    return record_out_of_memory();
  } catch (const std::exception& error) {
    return record_status(Status(StatusCode::kInternal, error.what()));
  }
}

}  // namespace accord::c
