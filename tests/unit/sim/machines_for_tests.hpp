#pragma once
// Machines with round numbers.

#include "sim/machine.hpp"

namespace accord::sim::testing {

inline Machine machine_of(int ranks_of_host) {
  Machine machine;
  machine.host.ranks = ranks_of_host;
  machine.host.call_seconds = 1e-6;
  machine.host.times = {.seconds_per_hop = 1e-7,
                        .seconds_per_step = 1e-8,
                        .touched = RateCurve(1e10),
                        .exchanged = RateCurve(5e9),
                        .published = {},
                        .packets = RateCurve(1e9),
                        .packet_sums = {},
                        .read = {}};
  machine.has_network = true;
  machine.network.nic_bytes_per_second = 1e9;
  machine.network.message_seconds = 5e-7;
  machine.network.latency_seconds = 1e-5;
  machine.network.switch_seconds = 1e-6;
  return machine;
}

}  // namespace accord::sim::testing
