#pragma once
// Timings of what a communicator does besides moving bytes: plans that repeat one primitive, which no algorithm is.

#include <optional>

#include "cli/bench/meter.hpp"
#include "plan/plan.hpp"
#include "sim/calibration.hpp"

namespace accord::cli {

/// Two ranks. Both call each method, in the same order. Each returns nullopt if a rank was interrupted, and fails as
/// calls do.
class PlanProbes {
 public:
  /// `pair`: a communicator of the two ranks.
  PlanProbes(Communicator pair, Meter& meter, Effort effort, sim::Statistic statistic)
      : pair_(std::move(pair)), meter_(meter), effort_(effort), statistic_(statistic) {}

  /// Calls with several round trips of a signal.
  Result<std::optional<std::vector<sim::Repeated>>> round_trips();
  /// Calls in which one rank makes many copies of 8 bytes.
  Result<std::optional<std::vector<sim::Repeated>>> steps();
  /// Half of a round trip of packets, for several sizes.
  Result<std::optional<std::vector<sim::Sized>>> packet_trips();
  /// A message of `bytes`, among many in one direction.
  Result<std::optional<sim::Figure>> message(std::size_t bytes);

 private:
  Result<std::optional<std::vector<sim::Repeated>>> measure(Collective collective, std::size_t bytes,
                                                            const std::vector<plan::Plan>& plans,
                                                            const std::vector<int>& times);
  Result<Communicator> communicator(const std::string& name, const std::string& select);

  Communicator pair_;
  Meter& meter_;
  sim::Figure figure_of(const Measured& measured) const;

  Effort effort_;
  sim::Statistic statistic_;
};

}  // namespace accord::cli
