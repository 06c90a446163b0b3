#pragma once
// How ranks learn the counts of parts that only some of them were given, before they move the parts themselves.

#include <cstdint>
#include <vector>

#include "comm/pending_work.hpp"

namespace accord::comm {

/// The counts of one operation whose record says Phase::kCountsFirst, as memory to all_gather: a rank tells the elements of each of
/// its parts (all_to_all) or of its only one (gather, scatter).
class CountsExchange {
 public:
  /// Begins anew with what this rank tells. Allocates for the first operation of its kind only.
  void begin(const Operation& operation, int members);
  const std::uint64_t* input() const { return told_.data(); }
  std::uint64_t* output() { return heard_.data(); }
  /// Elements of `input()`; of uint64.
  std::size_t count() const { return told_.size(); }

  /// What all ranks agree on: the longest part of any. kMismatch names a rank whose part has another count than this rank,
  /// `me`, was given for it. REQUIRES: output() has been gathered.
  Result<std::size_t> longest_part(const Operation& operation, int me) const;

 private:
  std::vector<std::uint64_t> told_;
  std::vector<std::uint64_t> heard_;  ///< of each rank in turn
};

}  // namespace accord::comm
