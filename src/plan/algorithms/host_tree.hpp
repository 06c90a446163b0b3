#pragma once
// How the ranks meet the hosts that they are on, and the canonical tree the hosts.

#include "plan/builder.hpp"
#include "topology/topology.hpp"

namespace accord::plan {

/// True if the canonical sum over all ranks is the canonical sum, over the hosts in their order, of each host's own canonical sum: the
/// ranks of a host follow each other, and the tree splits between hosts before it splits one.
bool hosts_are_subtrees(const topology::Topology& topology);
/// kUnsupported if not; `algorithm`: "hierarchical reduce".
Status check_hosts_are_subtrees(const topology::Topology& topology, std::string_view algorithm);

/// True if there are several hosts, and one of them has several ranks.
bool shares_hosts(const topology::Topology& topology);
/// True if hosts_are_subtrees() besides.
bool is_hierarchy(const topology::Topology& topology);

/// The columns that a message is cut into, as many as the largest host has ranks. On every host one rank leads a column, so the ranks
/// of a host share the work between hosts.
class HostColumns {
 public:
  explicit HostColumns(const topology::Topology& topology);

  int hosts() const { return topology_.host_count(); }
  int columns() const { return columns_; }
  Rank leader(int column, int host) const {
    const auto& ranks = topology_.ranks_of_host(host);
    return ranks[static_cast<std::size_t>(column) % ranks.size()];
  }
  /// The column that `rank` leads on its host before all others that it may lead.
  int column_of(Rank rank) const;

  /// A host of one rank has no sum of its own: it gives its input.
  bool is_single(int host) const { return topology_.ranks_of_host(host).size() == 1; }
  bool has_single() const;
  /// Where the sum of host `from` arrives at rank `at`: partials `place`, or scratch behind the first `scratch_chunks`.
  Chunk arrival(Rank at, int from, int place, int scratch_chunks) const {
    return is_single(from) ? scratch(at, scratch_chunks + place) : partials(at, place);
  }

 private:
  const topology::Topology& topology_;
  int columns_ = 0;
};

}  // namespace accord::plan
