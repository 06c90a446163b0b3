#include "sim/schedule.hpp"

namespace accord::sim {

Schedule schedule_of(const Programs& programs) {
  Schedule schedule;
  schedule.ranks = static_cast<int>(programs.programs.size());
  schedule.calls.push_back({.programs = &programs, .members = {}});
  for (Rank rank = 0; rank < schedule.ranks; ++rank)
    schedule.tasks.push_back({.rank = rank, .call = 0, .member = rank});
  return schedule;
}

}  // namespace accord::sim
