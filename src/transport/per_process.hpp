#pragma once
// One object per process, also after fork().

#include <sys/types.h>
#include <unistd.h>

#include <atomic>

namespace accord::transport {

/// The T of this process, created on first use and never destroyed. A forked child gets its own: the parent's might
/// be locked or half changed by a thread that the child does not have.
template <typename T>
T& per_process() {
  struct Owned {
    pid_t process;
    Owned* inherited;  // keeps the parent's object reachable, so that it is not reported as a leak
    T value;
  };
  static std::atomic<Owned*> current{nullptr};
  const pid_t process = ::getpid();
  Owned* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->process != process) {
    auto* fresh = new Owned{process, found, {}};
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel, std::memory_order_acquire)) {
      return fresh->value;
    }
    delete fresh;
  }
  return found->value;
}

}  // namespace accord::transport
