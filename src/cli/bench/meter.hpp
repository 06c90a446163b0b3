#pragma once
// Measures several ways of serving one operation, interleaved, on all ranks at once.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "cli/bench/exercise.hpp"
#include "cli/interrupt.hpp"

namespace accord::cli {

/// How long an operation of one size is measured.
struct Effort {
  double seconds = 0.3;           ///< for each contender
  std::optional<int> calls = {};  ///< number of calls, instead of `seconds`
  int rounds = 5;                 ///< turns in which the contenders alternate
};

/// One way of serving calls: a communicator with a selection table of its own.
struct Contender {
  std::string name;
  Communicator comm;
};

/// Times are seconds of one operation on the slowest rank. A sample is the mean of consecutive calls that take 30 us
/// together.
struct Measured {
  std::string algorithm;  ///< algorithm that ran; empty if unknown
  std::uint64_t calls = 0;
  std::size_t samples = 0;
  double minimum = 0;
  double median = 0;
  double maximum = 0;
  std::vector<double> round_medians = {};  ///< one per round; equal indices of the contenders belong together
  std::uint64_t wrong = 0;                 ///< wrong elements on all ranks
  std::string first_wrong = {};            ///< position of the first wrong element, if any
};

/// The ranks of a measurement. All ranks call measure() with the same arguments and get the same result. Not
/// thread-safe.
class Meter {
 public:
  /// `control`: a communicator of all ranks that is used for nothing else.
  Meter(Communicator control, const InterruptWatch& watch) : control_(std::move(control)), watch_(watch) {}

  /// Returns one Measured for each contender, or nullopt if a rank was interrupted. Fails as calls do.
  Result<std::optional<std::vector<Measured>>> measure(const ExerciseRequest& request, const Effort& effort,
                                                       std::vector<Contender>& contenders);

 private:
  /// Returns the largest of each value over all ranks, and records whether a rank was interrupted.
  Result<std::vector<double>> slowest(std::vector<double> values);
  Result<double> sample(Exercise& exercise, Communicator& comm, int calls);
  Result<int> calls_per_sample(Exercise& exercise, Communicator& comm, double* seconds);
  Result<std::string> algorithm_at_rank_0(const std::string& group, const BenchOperation& operation);
  Status check(Exercise& exercise, Contender& contender, Measured& measured);

  Communicator control_;
  const InterruptWatch& watch_;
  bool interrupted_ = false;
};

}  // namespace accord::cli
