#pragma once
// Lets ranks learn the counts of parts that only some of them were given, before they move the parts themselves.

#include <cstdint>
#include <vector>

#include "comm/pending_work.hpp"

namespace accord::comm {

/// The counts of one operation whose record says Phase::kCountsFirst, as memory for an all_gather. A rank contributes
/// the number of elements of each of its parts (all_to_all) or of its only part (gather, scatter).
class CountsExchange {
 public:
  /// Starts over with this rank's counts. Allocates for the first operation of its kind only.
  void begin(const Operation& operation, int members);
  const std::uint64_t* input() const { return own_counts_.data(); }
  std::uint64_t* output() { return all_counts_.data(); }
  /// Number of uint64 elements of `input()`.
  std::size_t count() const { return own_counts_.size(); }

  /// Returns the longest part of any rank, which is the same on all ranks. kMismatch names a rank whose part has
  /// another count than this rank, `me`, was given for it. REQUIRES: output() has been gathered.
  Result<std::size_t> longest_part(const Operation& operation, int me) const;

 private:
  std::vector<std::uint64_t> own_counts_;
  std::vector<std::uint64_t> all_counts_;  ///< of each rank in turn
};

}  // namespace accord::comm
