#pragma once
// The kernel namespaces that this process belongs to.

#include <cstdint>
#include <string>

#include "accord/status.hpp"

namespace accord::topology {

/// A number that is equal for processes of one machine that share their namespace of `kind`: "net", "pid"
/// (namespaces(7)).
Result<std::uint64_t> namespace_number(const std::string& kind);

}  // namespace accord::topology
