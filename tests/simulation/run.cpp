// Faults happen when a process takes its n-th step, so that they fall into what the process does rather than into the
// time that it waits.
#include "simulation/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "simulation/observer.hpp"
#include "simulation/rank_program.hpp"
#include "simulation/world.hpp"

namespace accord::simulation {
namespace {

constexpr Time kHorizon = 600 * kSecond;
constexpr std::size_t kMostJoiners = 256;  // each step may be repeated after failures

Pace pace_of(const Scenario& scenario) {
  Random random(~scenario.seed);
  Pace pace;
  pace.preempt_one_in = static_cast<std::uint64_t>(random.spread(4, 400));
  pace.preemption = random.spread(10 * kMicrosecond, kMillisecond);
  pace.late_one_in = static_cast<std::uint64_t>(random.spread(20, 2000));
  // Timeouts of scenarios with pauses are short, and a thread that stands still for long might end a call too late.
  if (!scenario.has(FaultKind::kPause)) pace.late = random.spread(kMillisecond, 60 * kMillisecond);
  return pace;
}

}  // namespace

Report run(const Scenario& scenario) {
  World world(scenario.seed, pace_of(scenario));
  Scheduler& scheduler = world.scheduler();
  Observer observer(world, scenario);
  const std::size_t most_processes = static_cast<std::size_t>(scenario.ranks) + kMostJoiners;
  const auto must_abort = std::make_unique<bool[]>(most_processes);
  std::vector<std::uint64_t> steps(most_processes);
  for (Rank rank = 0; rank < scenario.ranks; ++rank) {
    scheduler.start_process(fmt::format("rank {}", rank), 0,
                            [&, rank] { RankProgram(world, scenario, observer, must_abort.get()).run(rank); });
  }
  const int first = scheduler.processes().front()->pid;
  scheduler.on_step([&](Process& process) {
    const int rank = process.pid - first;
    const std::uint64_t step = ++steps[static_cast<std::size_t>(rank)];
    for (const Fault& fault : scenario.faults) {
      if (fault.rank != rank || fault.step != step) continue;
      if (fault.kind == FaultKind::kKill) {
        observer.count_fault("killed", process);
        scheduler.kill(process);
      } else if (fault.kind == FaultKind::kPause) {
        observer.count_fault("paused", process);
        scheduler.pause(process, scheduler.now() + fault.duration);
      } else {
        must_abort[static_cast<std::size_t>(rank)] = true;
      }
    }
  });
  const Time begin = scheduler.now();
  const Outcome outcome = scheduler.run(kHorizon);
  if (!outcome.all_ended) observer.complain("the run does not end:\n" + outcome.stuck);
  observer.compare_shrunk();
  return Report{.violations = observer.violations(),
                .counts = observer.counts(),
                .trace = scheduler.trace(),
                .steps = scheduler.steps(),
                .virtual_time = scheduler.now() - begin};
}

}  // namespace accord::simulation
