#pragma once
// The results that a tuning run has so far, in a file, so that an interrupted run can continue.

#include <map>
#include <optional>
#include <string>

#include "cli/tune/winners.hpp"
#include "plan/tuning.hpp"

namespace accord::cli {

/// Not thread-safe. Only rank 0 uses it.
class KeptResults {
 public:
  /// `path`: the file. Results of another machine, version, number of ranks or effort (`effort`, any text) are
  /// ignored, and so is a file that cannot be parsed.
  KeptResults(std::string path, const plan::TuningFacts& facts, const std::string& effort);

  std::optional<TunedPoint> find(Collective collective, std::size_t bytes) const;
  /// Adds a point and writes the file.
  Status add(Collective collective, const TunedPoint& point);
  /// Removes the file, for example when the table has been written.
  void drop();
  std::size_t size() const { return points_.size(); }

 private:
  const std::string path_;
  const std::string key_;
  std::map<std::pair<std::string, std::size_t>, TunedPoint> points_;
};

}  // namespace accord::cli
