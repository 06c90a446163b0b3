#pragma once
// Relates the ranks to their hosts, and the canonical tree to the hosts.

#include <vector>

#include "plan/builder.hpp"
#include "topology/topology.hpp"

namespace accord::plan {

/// True if the canonical sum over all ranks equals the canonical sum, over the hosts in their order, of each host's
/// own canonical sum: the ranks of a host are consecutive, and the tree splits between hosts before it splits a host.
bool hosts_are_subtrees(const topology::Topology& topology);
/// Fails with kUnsupported if hosts_are_subtrees() is false. `algorithm`: "hierarchical reduce".
Status check_hosts_are_subtrees(const topology::Topology& topology, std::string_view algorithm);

/// True if there are several hosts, and one of them has several ranks.
bool shares_hosts(const topology::Topology& topology);
/// True if, in addition, hosts_are_subtrees().
bool is_hierarchy(const topology::Topology& topology);

/// The columns that a message is cut into, as many as the largest host has ranks. On every host one rank leads a
/// column, so the ranks of a host share the work between hosts.
class HostColumns {
 public:
  explicit HostColumns(const topology::Topology& topology);

  int hosts() const { return topology_.host_count(); }
  int columns() const { return columns_; }
  Rank leader(int column, int host) const {
    const auto& ranks = topology_.ranks_of_host(host);
    return ranks[static_cast<std::size_t>(column) % ranks.size()];
  }
  /// The first of the columns that `rank` leads on its host.
  int column_of(Rank rank) const;

  /// The other hosts in the order in which their data reach `host`, if each host sends to the next ones in turn.
  std::vector<int> senders_to(int host) const;

  /// A host with one rank has no sum of its own and uses its input instead.
  bool is_single(int host) const { return topology_.ranks_of_host(host).size() == 1; }
  bool has_single() const;
  /// Where the sum of host `from` arrives at rank `at`: partials `place`, or scratch after the first
  /// `scratch_chunks`.
  Chunk arrival(Rank at, int from, int place, int scratch_chunks) const {
    return is_single(from) ? scratch(at, scratch_chunks + place) : partials(at, place);
  }

 private:
  const topology::Topology& topology_;
  int columns_ = 0;
};

}  // namespace accord::plan
