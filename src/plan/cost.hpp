#pragma once
// What a plan costs, counted on the plan: steps, hops and bytes for a message of a given size.

#include <cstddef>

#include "plan/plan.hpp"

namespace accord::plan {

/// Of one call, over all its rounds, at the rank that has most of each.
struct Cost {
  int steps = 0;                    ///< in one round, over all lanes
  int hops = 0;                     ///< signals and packets one after the other, on the longest way through one round
  std::size_t bytes_exchanged = 0;  ///< that the rank reads from peers' memory and writes to it
  std::size_t bytes_touched = 0;    ///< that the rank reads and writes in copies, reductions and packets, anywhere
  std::size_t bytes_added = 0;      ///< operands of reductions beyond the first
};

/// `count`: as for bounds_of(). `partial_bytes`: of an element of partials, if that is more than `element_bytes`. REQUIRES: a plan
/// that verify() accepts.
Cost cost_of(const Plan& plan, std::size_t count, std::size_t element_bytes, std::size_t partial_bytes = 0);

}  // namespace accord::plan
