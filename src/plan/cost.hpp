#pragma once
// What a plan costs, counted on the plan: steps, hops and bytes for a message of a given size.

#include <cstddef>
#include <cstdint>

#include "plan/plan.hpp"

namespace accord::plan {

/// Of one call, over all its rounds, at the rank that has most of each.
struct Cost {
  int steps = 0;                     ///< in one round, over all lanes
  int hops = 0;                      ///< signals and packets one after the other, on the longest way through one round
  std::size_t bytes_exchanged = 0;   ///< that the rank reads from peers' memory and writes to it
  std::size_t bytes_touched = 0;     ///< that the rank reads and writes in copies, reductions and packets, anywhere
  std::size_t bytes_added = 0;       ///< operands of reductions beyond the first
  std::size_t bytes_in_packets = 0;  ///< that the rank puts into packets and takes out of them, line by line
};

/// `count`: as for bounds_of(). `partial_bytes`: of an element of partials, if that is more than `element_bytes`. REQUIRES: a plan
/// that verify() accepts.
Cost cost_of(const Plan& plan, std::size_t count, std::size_t element_bytes, std::size_t partial_bytes = 0);

/// What things cost on a machine. The defaults were fitted to packet, one-shot and two-shot all_reduce of 8 B to 8 KB between two cores
/// that share a cache; messages that leave the cache take longer.
struct MachineTimes {
  double seconds_per_hop = 60e-9;
  double seconds_per_step = 5e-9;
  double seconds_per_byte_touched = 1 / 50e9;
  double seconds_per_byte_exchanged = 1 / 40e9;  ///< on top of touching it
  double seconds_per_byte_in_packets = 1 / 7e9;  ///< on top of that: 8 ns a line
};

/// `rounds` rounds of that cost, one after the other: good for telling plans apart, not for planning by the clock.
double predicted_seconds(const Cost& cost, std::uint64_t rounds, const MachineTimes& times = {});

}  // namespace accord::plan
