#pragma once
// The cost of a plan, counted on the plan: steps, hops and bytes for a message of a given size.

#include <cstddef>
#include <cstdint>

#include "plan/plan.hpp"

namespace accord::plan {

/// Cost of one call, over all its rounds; each figure is the maximum over the ranks.
struct Cost {
  int steps = 0;                     ///< in one round, over all lanes
  int hops = 0;                      ///< consecutive signals and packets on the longest path through one round
  std::size_t bytes_exchanged = 0;   ///< read from and written to peers' memory
  std::size_t bytes_touched = 0;     ///< read and written in copies, reductions and packets, anywhere
  std::size_t bytes_added = 0;       ///< operands of reductions beyond the first
  std::size_t bytes_in_packets = 0;  ///< put into and taken out of packets, line by line
};

/// `count`: as for bounds_of(). `partial_bytes`: size of an element of partials, if larger than `element_bytes`.
/// REQUIRES: a plan that verify() accepts.
Cost cost_of(const Plan& plan, std::size_t count, std::size_t element_bytes, std::size_t partial_bytes = 0);

/// Times of elementary operations on a machine. The defaults were fitted to packet, one-shot and two-shot all_reduce
/// of 8 B to 8 KB between two cores that share a cache; messages that leave the cache take longer.
struct MachineTimes {
  double seconds_per_hop = 60e-9;
  double seconds_per_step = 5e-9;
  double seconds_per_byte_touched = 1 / 50e9;
  double seconds_per_byte_exchanged = 1 / 40e9;  ///< in addition to touching it
  double seconds_per_byte_in_packets = 1 / 7e9;  ///< in addition to that: 8 ns per line
};

/// Predicts the time of `rounds` consecutive rounds of that cost. Good for ranking plans, not for absolute times.
double predicted_seconds(const Cost& cost, std::uint64_t rounds, const MachineTimes& times = {});

}  // namespace accord::plan
