#pragma once
// How every function of the C interface begins and ends: null arguments are refused by name, the Status becomes the answer and
// this thread's last error, and no exception gets through.

#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>

#include "accord/accord.h"
#include "accord/status.hpp"

namespace accord::c {

/// The status's code; a failure becomes this thread's accord_last_error(). Allocates nothing.
accord_status_t give(const Status& status) noexcept;

/// An argument that must not be null.
struct Needed {
  std::string_view name;
  const void* value;
};

/// The answer when there is no memory left, made beforehand.
accord_status_t give_no_memory() noexcept;

/// "accord_run: communicator is null". kInvalidArgument.
Status null_argument(std::string_view function, std::string_view name);

/// Gives what `body(function)` returns, unless an argument is null that is needed. The standard library's exceptions end here.
template <typename Body>
accord_status_t answer(std::string_view function, std::initializer_list<Needed> needed, Body&& body) noexcept {
  try {
    for (const Needed& argument : needed)
      if (argument.value == nullptr) return give(null_argument(function, argument.name));
    return give(body(function));
  } catch (const std::bad_alloc&) {
    return give_no_memory();
  } catch (const std::exception& error) {
    return give(Status(StatusCode::kInternal, error.what()));
  }
}

}  // namespace accord::c
