#pragma once
// The process between the launcher and a rank.

#include <sched.h>
#include <signal.h>

#include <array>
#include <cstdint>
#include <vector>

#include "accord/store.hpp"

namespace accord::cli {

/// Signals that end the job after the grace period. The other signals that are passed on end nothing.
inline constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

/// Everything that a guard needs after the fork, prepared before it: a forked child must not allocate memory.
struct GuardPlan {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  cpu_set_t processors;
  bool bound = false;
  int input = -1, output = -1, error = -1;  ///< of the rank
  int nothing = -1;                         ///< /dev/null
  int control = -1;                         ///< the guard's end of a SOCK_SEQPACKET
  Duration grace = {};                      ///< for the rank's helpers once the rank has ended
};

enum class GuardEvent : std::int32_t {
  kStarted,     ///< always first: the rank is process `number`
  kNotStarted,  ///< instead: exec failed with errno `number`
  kExited,      ///< with code `number`
  kKilled,      ///< by signal `number`
};

/// A message of a guard to its launcher. The end of the socket means that no process of the rank is left.
struct GuardReport {
  GuardEvent event = GuardEvent::kStarted;
  std::int32_t number = 0;
};

/// Runs in a new child of the launcher: starts the rank and stays until the rank and all its helpers have ended. The
/// launcher sends signal numbers (int). A signal goes to the rank alone, or to a shell and its commands; SIGKILL, and
/// the end of the launcher, end all processes.
[[noreturn]] void guard_rank(const GuardPlan& plan);

}  // namespace accord::cli
