#include "base/heavy_fence.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>

#include "base/log.hpp"

namespace accord {
namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

bool has_heavy_fence() {
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return registered;
}

// It does not fail once the process has registered, unless the process forbids itself the call later.
void heavy_fence() {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  log().critical("membarrier, which this process was allowed before, fails: {}", std::strerror(errno));
  std::terminate();
}

}  // namespace accord
