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
//   exchanged_bytes_per_second = 40e9      # in addition, for memory of other ranks
//   published_bytes_per_second = 90e9      # in addition, for what it writes for other ranks; absent: nothing
//   packet_bytes_per_second = 7e9          # in addition, for packets
//   packet_sum_bytes_per_second = 9e9      # in addition, of the result, for sums over packets; absent: nothing
//   read_bytes_per_second = 8e9            # copies by the kernel from other ranks' buffers; absent: there are none
//   memory_bytes_per_second = 200e9        # of all ranks of the host together; absent: no limit
//   cache_bytes = 32e6                     # of the host: calls that use less do not count as users of the memory
//   cores = 4                              # that the ranks share; absent: one for each rank
//   core_switch_seconds = 1e-6             # until a core that one rank gives up runs another one
//   flops_per_second = 400e12              # that a rank reaches in matrix products; for training steps
//
// A rate is a number, or a list such as [[4e3, 90e9], [1e6, 40e9], [64e6, 15e9]] of sizes and rates: see RateCurve.
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
//   hosts_share_cores = false              # they are namespaces of one machine, which has `cores` cores

#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "sim/rate_curve.hpp"
#include "topology/topology.hpp"

namespace accord::sim {

/// Times of elementary operations of one rank.
struct HostTimes {
  double seconds_per_hop = 0;
  double seconds_per_step = 0;
  RateCurve touched;      ///< by the bytes that the rank uses before it uses the same ones again
  RateCurve exchanged;    ///< in addition, by the bytes of the step
  RateCurve published;    ///< in addition, by the bytes of the step
  RateCurve packets;      ///< in addition, by the bytes of the step
  RateCurve packet_sums;  ///< in addition, of the result of sums over packets
  RateCurve read;  ///< copies by the kernel from other ranks' buffers, by the bytes of the step; all that they cost
};

struct HostModel {
  int ranks = 1;
  double call_seconds = 0;
  HostTimes times;
  double memory_bytes_per_second = 0;  ///< 0: no limit
  double cache_bytes = 0;
  int cores = 0;  ///< 0: one for each rank
  double core_switch_seconds = 0;
  double flops_per_second = 0;  ///< 0: unknown
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
  bool hosts_share_cores = false;
};

struct Machine {
  HostModel host;
  bool has_network = false;
  NetworkModel network;

  /// The core that a rank runs on; cores are numbered over all hosts.
  int core_of(Rank rank) const;
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
