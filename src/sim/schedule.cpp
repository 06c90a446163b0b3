#include "sim/schedule.hpp"

namespace accord::sim {

Schedule schedule_of(std::shared_ptr<const Programs> programs, std::string label) {
  Schedule schedule;
  schedule.ranks = static_cast<int>(programs->programs.size());
  schedule.labels.push_back(std::move(label));
  schedule.calls.push_back({.programs = std::move(programs), .members = nullptr});
  for (Rank rank = 0; rank < schedule.ranks; ++rank)
    schedule.tasks.push_back({.rank = rank, .call = 0, .member = rank});
  return schedule;
}

}  // namespace accord::sim
