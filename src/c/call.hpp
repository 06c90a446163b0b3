#pragma once
// The part that accord_run and the calls by name have in common.

#include <string_view>

#include "accord/accord.h"

namespace accord::c {

/// Implements accord_run, with `function` in its own errors.
accord_status_t run_call(std::string_view function, accord_communicator_t* communicator, const accord_call_t* call,
                         const accord_call_options_t* options);

}  // namespace accord::c
