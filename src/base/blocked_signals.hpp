#pragma once
// Keeping the program's signals away from accord's threads.

#include <signal.h>

#include <array>

namespace accord {

/// While it lives, the calling thread takes no signals, and neither do the threads that it starts, for good: signals belong
/// to the program's own threads, which may block them to take them with sigwait(). Faults of the thread itself still reach
/// their handlers.
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
