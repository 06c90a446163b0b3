#pragma once
// Clocks of simulated processes.

#include <ctime>

#include "simulation/scheduler.hpp"

namespace accord::simulation {

/// Virtual time of a time on one of the clocks of the running process.
Time time_of(clockid_t clock, const timespec& at);
/// Moves the wall clock of all processes of a host.
void jump_wall_clock(int host, Time by);
void reset_wall_clocks();

}  // namespace accord::simulation
