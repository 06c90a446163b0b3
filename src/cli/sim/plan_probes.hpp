#pragma once
// Timings of what a communicator does besides moving bytes: plans that repeat one primitive, which no algorithm is.

#include <optional>

#include "cli/bench/meter.hpp"
#include "plan/plan.hpp"
#include "sim/calibration.hpp"

namespace accord::cli {

/// Two ranks, or one alone for calls and steps. All call each method, in the same order. Each returns nullopt if a rank
/// was interrupted, and fails as calls do.
class PlanProbes {
 public:
  /// `ranks`: a communicator of them.
  PlanProbes(Communicator ranks, Meter& meter, Effort effort, sim::Statistic statistic)
      : ranks_(std::move(ranks)), meter_(meter), effort_(effort), statistic_(statistic) {}

  /// Calls with several round trips of a signal.
  Result<std::optional<std::vector<sim::Repeated>>> round_trips();
  /// Calls with many copies of 8 bytes, of one rank.
  Result<std::optional<std::vector<sim::Repeated>>> steps();
  /// A call that waits for nothing, of one rank.
  Result<std::optional<sim::Figure>> call();
  /// A message of `bytes`, among many in one direction.
  Result<std::optional<sim::Figure>> message(std::size_t bytes);

 private:
  Result<std::optional<std::vector<sim::Repeated>>> measure(Collective collective, std::size_t bytes,
                                                            const std::vector<plan::Plan>& plans,
                                                            const std::vector<int>& times);
  Result<std::optional<sim::Figure>> measure(std::string_view operation, std::size_t bytes);
  Result<Communicator> communicator(const std::string& name, const std::string& select);

  Communicator ranks_;
  Meter& meter_;
  sim::Figure figure_of(const Measured& measured) const;

  Effort effort_;
  sim::Statistic statistic_;
};

}  // namespace accord::cli
