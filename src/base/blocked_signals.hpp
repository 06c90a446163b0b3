#pragma once
// Keeps the program's signals away from accord's threads.

#include <signal.h>

#include <array>

namespace accord {

/// Blocks all signals in the calling thread while the object lives, and permanently in the threads started meanwhile.
/// Signals belong to the program's own threads, which may block them in order to receive them with sigwait(). A
/// thread's own faults still reach their handlers.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : std::array{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace accord
