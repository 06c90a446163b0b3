#pragma once
// Whether processes of this host may read each other's memory.

#include <string>

namespace accord::topology {

/// Equal, and not empty, for processes of one host whose memory each may read by process_vm_readv(): one user, one namespace of
/// process numbers, and neither ACCORD_SINGLE_COPY=off nor a rule of the kernel against it. Under Yama's restricted mode it declares that any
/// process of this user may read this one.
std::string this_reader();

}  // namespace accord::topology
