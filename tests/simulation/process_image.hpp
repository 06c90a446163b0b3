#pragma once
// The global and thread-local variables of the simulated library, of which each simulated process and thread has its
// own values.

#include <cstddef>
#include <vector>

namespace accord::simulation {

struct Fiber;
struct Process;

/// Puts the variables of a thread and its process in place, and keeps those that were there for their owners.
/// `fiber`: null for the values with which the library was loaded.
void switch_variables(Fiber* fiber);

}  // namespace accord::simulation
