// Static variables of functions: the first byte of a guard says that the variable is ready, the second that a thread
// initializes it. A file of its own, because a compiler that needs guards declares these functions in its own way.
#include <cxxabi.h>

#include "simulation/scheduler.hpp"

using accord::simulation::Scheduler;

extern "C" {

int __cxa_guard_acquire(abi::__guard* guard) {
  char* const bytes = reinterpret_cast<char*>(guard);
  while (bytes[0] == 0 && bytes[1] != 0) Scheduler::current()->yield();
  if (bytes[0] != 0) return 0;
  bytes[1] = 1;
  return 1;
}
void __cxa_guard_release(abi::__guard* guard) noexcept {
  char* const bytes = reinterpret_cast<char*>(guard);
  bytes[1] = 0;
  bytes[0] = 1;
}
void __cxa_guard_abort(abi::__guard* guard) noexcept { reinterpret_cast<char*>(guard)[1] = 0; }

}  // extern "C"
