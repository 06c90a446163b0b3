#pragma once
// Which of the kernel's namespaces this process is in.

#include <cstdint>
#include <string>

#include "accord/status.hpp"

namespace accord::topology {

/// Equal for processes of one machine that share their namespace of that kind: "net", "pid" (namespaces(7)).
Result<std::uint64_t> namespace_number(const std::string& kind);

}  // namespace accord::topology
