#pragma once
// Identifies processes of this host that may read each other's memory.

#include <string>

namespace accord::topology {

/// Equal and not empty for processes of one host that may read each other's memory by process_vm_readv(): same user,
/// same PID namespace, and neither ACCORD_SINGLE_COPY=off nor a kernel rule against it. Under Yama's restricted mode,
/// the call declares that any process of this user may read this one.
std::string this_reader();

}  // namespace accord::topology
