// Runs of 8, 16, 32, ... rounds, until the second half of a run has taken as long as twice the half before it.
#include "sim/estimate.hpp"

#include <cmath>

#include "sim/simulate.hpp"

namespace accord::sim {

Result<double> estimate_seconds(const Programs& programs, const Machine& machine, const topology::Topology& topology,
                                Sharing sharing) {
  constexpr std::uint64_t kFirst = 8, kWorthwhile = 8 * kFirst;
  constexpr double kSteady = 0.002;  // of a round's seconds
  const auto seconds_of = [&](std::uint64_t rounds) -> Result<double> {
    Programs part = programs;
    part.rounds = rounds;
    ACCORD_ASSIGN_OR_RETURN(const Times times, simulate(std::move(part), machine, topology, sharing));
    return times.seconds;
  };
  if (programs.calls > 1 || programs.rounds < kWorthwhile) return seconds_of(programs.rounds);
  ACCORD_ASSIGN_OR_RETURN(double quarter, seconds_of(kFirst));
  ACCORD_ASSIGN_OR_RETURN(double half, seconds_of(2 * kFirst));
  for (std::uint64_t rounds = 4 * kFirst; 2 * rounds <= programs.rounds; rounds *= 2) {
    ACCORD_ASSIGN_OR_RETURN(const double all, seconds_of(rounds));
    const double before = 4 * (half - quarter) / static_cast<double>(rounds);
    const double last = 2 * (all - half) / static_cast<double>(rounds);
    if (std::abs(last - before) <= kSteady * last) return all + last * static_cast<double>(programs.rounds - rounds);
    quarter = half;
    half = all;
  }
  return seconds_of(programs.rounds);
}

}  // namespace accord::sim
