// Splits ranks and hosts in parallel, each at the largest power of two below their number, down to single hosts.
#include "plan/algorithms/host_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace accord::plan {
namespace {

int left_half(int count) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)) / 2); }

bool splits_alike(const topology::Topology& topology, Rank first, int ranks, int first_host, int hosts) {
  if (hosts == 1) {
    const auto& own = topology.ranks_of_host(first_host);
    return own.front() == first && own.back() == first + ranks - 1 && static_cast<int>(own.size()) == ranks;
  }
  if (ranks < hosts) return false;
  const int left = left_half(ranks), left_hosts = left_half(hosts);
  return splits_alike(topology, first, left, first_host, left_hosts) &&
         splits_alike(topology, first + left, ranks - left, first_host + left_hosts, hosts - left_hosts);
}

}  // namespace

bool hosts_are_subtrees(const topology::Topology& topology) {
  return splits_alike(topology, 0, topology.size(), 0, topology.host_count());
}

Status check_hosts_are_subtrees(const topology::Topology& topology, std::string_view algorithm) {
  if (hosts_are_subtrees(topology)) return {};
  return Status(
      StatusCode::kUnsupported,
      fmt::format("{}: the ranks of a host are not a subtree of the canonical tree over all ranks", algorithm));
}

bool shares_hosts(const topology::Topology& topology) {
  return topology.host_count() > 1 && topology.host_count() < topology.size();
}

bool is_hierarchy(const topology::Topology& topology) { return shares_hosts(topology) && hosts_are_subtrees(topology); }

HostColumns::HostColumns(const topology::Topology& topology) : topology_(topology) {
  for (int host = 0; host < hosts(); ++host)
    columns_ = std::max(columns_, static_cast<int>(topology.ranks_of_host(host).size()));
}

int HostColumns::column_of(Rank rank) const {
  const auto& ranks = topology_.ranks_of_host(topology_.host_of(rank));
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

std::vector<int> HostColumns::senders_to(int host) const {
  std::vector<int> senders;
  for (int step = 1; step < hosts(); ++step) senders.push_back((host + hosts() - step) % hosts());
  return senders;
}

bool HostColumns::has_single() const {
  for (int host = 0; host < hosts(); ++host)
    if (is_single(host)) return true;
  return false;
}

}  // namespace accord::plan
