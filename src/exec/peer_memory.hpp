#pragma once
// Reads the memory of other processes of this host through the kernel.

#include <cstddef>
#include <span>

namespace accord::exec {

/// Copies bytes at `from` in the memory of `process`, which may be this one. Returns 0, or the errno.
/// Cost: a system call; from some 64 KiB on, less than a copy through shared memory.
int read_peer(int process, const std::byte* from, std::span<std::byte> to);

}  // namespace accord::exec
