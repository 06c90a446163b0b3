#pragma once
// The memory of other processes of this host, read by the kernel.

#include <cstddef>
#include <span>

namespace accord::exec {

/// Copies what lies at `from` in the memory of `process`, which may be this one. Gives 0, or the errno. Cost: a system call, and less
/// than a copy through shared memory from some 64 KiB.
int read_peer(int process, const std::byte* from, std::span<std::byte> to);

}  // namespace accord::exec
