// One call copies at most 2 GiB, and less if it encounters an unmapped page.
#include "exec/peer_memory.hpp"

#include <sys/uio.h>

#include <cerrno>

namespace accord::exec {

int read_peer(int process, const std::byte* from, std::span<std::byte> to) {
  while (!to.empty()) {
    const iovec here = {to.data(), to.size()}, there = {const_cast<std::byte*>(from), to.size()};
    const ssize_t bytes = process_vm_readv(process, &here, 1, &there, 1, 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return bytes < 0 ? errno : EFAULT;
    from += bytes;
    to = to.subspan(static_cast<std::size_t>(bytes));
  }
  return 0;
}

}  // namespace accord::exec
