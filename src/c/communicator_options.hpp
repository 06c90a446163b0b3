#pragma once
// Options of communicators, as C callers pass them.

#include <string_view>

#include "accord/accord.h"
#include "accord/communicator.hpp"

namespace accord::c {

/// Options that the caller left at their defaults keep their C++ defaults. Null options are the defaults.
Result<CommunicatorOptions> options_of(const accord_communicator_options_t* given, std::string_view function);

}  // namespace accord::c
