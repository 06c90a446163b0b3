#pragma once
// A machine in numbers: what a simulation knows about hosts and the network between them. All hosts are alike.
//
// Written as a TOML file:
//
//   [host]
//   ranks = 8                              # of each host
//   call_seconds = 0.5e-6                  # a call before its first step
//   step_seconds = 5e-9                    # each step of a plan
//   hop_seconds = 60e-9                    # until another rank of the host sees a signal or a packet
//   bytes_per_second = 50e9                # that a rank reads and writes in copies and reductions
//   exchanged_bytes_per_second = 40e9      # the same for memory of other ranks, in addition
//   packet_bytes_per_second = 7e9          # the same for packets, in addition
//   memory_bytes_per_second = 200e9        # of all ranks of the host together; absent: no limit
//
//   [network]                              # absent: there is only one host
//   shape = "fat_tree"                     # or crossbar, rail_optimized, dragonfly, torus
//   nics = 1                               # of each host; rank r of a host uses NIC r * nics / ranks
//   nic_bytes_per_second = 12.5e9          # in each direction
//   message_seconds = 0.3e-6               # processor time to send a message, and to receive it
//   latency_seconds = 2e-6                 # from NIC to NIC through one switch
//   switch_seconds = 0.3e-6                # each further switch
//   hosts_per_switch = 16                  # fat_tree, rail_optimized, dragonfly: below one leaf or in one group
//   oversubscription = 1.0                 # fat_tree, rail_optimized: what enters a leaf to what leaves it upwards
//   global_bytes_per_second = 25e9         # dragonfly: between two groups, in each direction
//   torus = [4, 4, 4]                      # torus: hosts in each dimension

#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "plan/cost.hpp"
#include "topology/topology.hpp"

namespace accord::sim {

struct HostModel {
  int ranks = 1;
  double call_seconds = 0;
  plan::MachineTimes times;            ///< of one rank
  double memory_bytes_per_second = 0;  ///< 0: no limit
};

enum class NetworkShape : std::uint8_t {
  kCrossbar,       ///< all NICs on one switch
  kFatTree,        ///< leaf switches below spines
  kRailOptimized,  ///< NIC i of every host on the leaves of rail i; rails meet at the spines
  kDragonfly,      ///< groups of hosts; a link between each two groups
  kTorus,          ///< hosts are switches; routes change one dimension after the other
};
std::string_view to_string(NetworkShape shape);

struct NetworkModel {
  NetworkShape shape = NetworkShape::kCrossbar;
  int nics = 1;
  double nic_bytes_per_second = 0;
  double message_seconds = 0;
  double latency_seconds = 0;
  double switch_seconds = 0;
  int hosts_per_switch = 0;
  double oversubscription = 1;
  double global_bytes_per_second = 0;
  std::vector<int> torus;
};

struct Machine {
  HostModel host;
  bool has_network = false;
  NetworkModel network;
};

/// Reads the format above. Fails with kInvalidArgument, which names the key and its line: an unknown key (with the
/// nearest known one), a missing one, a value of the wrong type or out of range.
Result<Machine> machine_from_toml(std::string_view text);
/// The same for a file. The error begins with its path.
Result<Machine> read_machine(const std::string& path);

/// Ranks 0 to ranks - 1, host by host. Fails with kInvalidArgument if they do not fill whole hosts, unless it is one,
/// or if several hosts have no network.
Result<topology::Topology> topology_of(const Machine& machine, int ranks);

}  // namespace accord::sim
