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
  std::optional<int> calls = {};  ///< that many calls instead
  int rounds = 5;                 ///< turns in which the contenders alternate
};

/// One way of serving calls: a communicator with a selection table of its own.
struct Contender {
  std::string name;
  Communicator comm;
};

/// Times are seconds of one operation on the slowest rank. A sample is the mean of as many calls in a row as take 30 us.
struct Measured {
  std::string algorithm;  ///< that ran; empty if that is not known
  std::uint64_t calls = 0;
  std::size_t samples = 0;
  double minimum = 0;
  double median = 0;
  double maximum = 0;
  std::vector<double> round_medians = {};  ///< of each turn; turns of the contenders with one number belong together
  std::uint64_t wrong = 0;                 ///< elements, on all ranks
  std::string first_wrong = {};            ///< where, if there are any
};

/// The ranks of a measurement. All of them call measure() with the same arguments and get the same answer. Not thread-safe.
class Meter {
 public:
  /// `control`: of all ranks, and used for nothing else.
  Meter(Communicator control, const InterruptWatch& watch) : control_(std::move(control)), watch_(watch) {}

  /// One Measured for each contender; nullopt if a rank was interrupted. Fails as calls do.
  Result<std::optional<std::vector<Measured>>> measure(const ExerciseRequest& request, const Effort& effort,
                                                       std::vector<Contender>& contenders);

 private:
  /// The largest of each value over all ranks; after them, whether a rank was interrupted.
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
