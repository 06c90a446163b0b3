#include "base/heavy_fence.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>

#include "base/log.hpp"

namespace accord {
namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

bool has_heavy_fence() {
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return registered;
}

// After the process has registered, the call fails only for lack of memory, or because the process has since
// forbidden itself the call.
void heavy_fence() {
  while (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    if (errno != ENOMEM) {
      log().critical("membarrier, which this process was allowed before, fails: {}", std::strerror(errno));
      std::terminate();
    }
    std::this_thread::yield();
  }
}

}  // namespace accord
