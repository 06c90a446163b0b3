#pragma once
// Is NCCL's library on this machine, and which version?

#include <string>

#include "accord/status.hpp"

namespace accord::c {

/// "2.29.7 (/usr/lib/.../libnccl.so.2)"; kNotFound if the loader does not find it, kUnsupported if it answers wrongly.
Result<std::string> find_nccl();

}  // namespace accord::c
