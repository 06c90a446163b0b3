#pragma once
// The links of a network, and the route of each message.

#include <cstdint>
#include <string>
#include <vector>

#include "sim/machine.hpp"

namespace accord::sim {

using LinkId = std::int32_t;

struct Link {
  std::string name;  ///< "host 3, NIC 0, out"
  double bytes_per_second = 0;
};

struct Route {
  std::vector<LinkId> links;  ///< in order
  double latency = 0;         ///< seconds from the first link to the last
};

/// How far all hosts can be shifted, so that host h takes the place of host h + n modulo their number, without any
/// change of the network: the smallest n, which divides the number of hosts.
int symmetric_hosts(const NetworkModel& model, int hosts);

/// The network between `hosts` hosts. Immutable. Several links between the same two switches count as one, whose
/// capacity is their sum, as if traffic were spread evenly over them.
class Network {
 public:
  /// REQUIRES: a machine with a network that has room for the hosts.
  Network(const NetworkModel& model, int hosts);

  const std::vector<Link>& links() const { return links_; }
  /// From NIC `from_nic` of host `from` to NIC `to_nic` of host `to`. REQUIRES: different hosts.
  Route route(int from, int from_nic, int to, int to_nic) const;
  /// The link that stands for this one, and for all others to which it can be shifted by multiples of `period` hosts.
  /// REQUIRES: a multiple of symmetric_hosts().
  LinkId representative(LinkId link, int period) const;

 private:
  LinkId add(std::string name, double bytes_per_second);
  void add_leaves(int leaves, const char* name);
  void add_torus();
  Route torus_route(int from, int from_nic, int to, int to_nic) const;
  LinkId nic_out(int host, int nic) const { return 2 * (host * model_.nics + nic); }
  LinkId nic_in(int host, int nic) const { return nic_out(host, nic) + 1; }
  int leaf_of(int host, int nic) const;
  bool is_torus() const { return model_.shape == NetworkShape::kTorus; }
  LinkId up(int leaf) const { return first_inner_ + 2 * leaf; }
  LinkId down(int leaf) const { return up(leaf) + 1; }

  NetworkModel model_;
  int hosts_;
  int leaves_ = 0;  // or groups
  std::vector<Link> links_;
  LinkId first_inner_ = 0;
};

}  // namespace accord::sim
