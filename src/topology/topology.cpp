// Ranks with equal host names share a host. Hosts are numbered in the order of their first ranks. The cores of a host
// are the union of those that its ranks may use: by core ids if all ranks know theirs, otherwise the union of their
// processors, scaled by the number of processors per core on that host.
#include "topology/topology.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace accord::topology {
namespace {

// Physical cores that these ranks of one host may use together.
std::size_t cores_together(const std::vector<Place>& places, const std::vector<Rank>& ranks) {
  std::set<int> core_ids;
  std::set<int> cpus;
  std::size_t core_sum = 0;
  std::size_t cpu_sum = 0;
  bool all_known = true;
  for (const Rank rank : ranks) {
    const Place& place = places[static_cast<std::size_t>(rank)];
    core_ids.insert(place.core_ids.begin(), place.core_ids.end());
    cpus.insert(place.cpus.begin(), place.cpus.end());
    core_sum += static_cast<std::size_t>(std::max(1, place.cores));
    cpu_sum += place.cpus.size();
    all_known = all_known && !place.core_ids.empty();
  }
  if (all_known) return core_ids.size();
  return cpu_sum == 0 ? core_sum : cpus.size() * core_sum / cpu_sum;
}

}  // namespace

Topology::Topology(std::vector<Place> places) : places_(std::move(places)), ranks_(places_.size()) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
  std::map<std::string_view, int> number_of;
  for (const Rank rank : ranks_) {
    const auto [entry, is_new] = number_of.try_emplace(place(rank).host, host_count());
    if (is_new) hosts_.emplace_back();
    host_of_.push_back(entry->second);
    hosts_[static_cast<std::size_t>(entry->second)].push_back(rank);
  }
  oversubscribed_ = std::any_of(hosts_.begin(), hosts_.end(), [this](const std::vector<Rank>& ranks) {
    return ranks.size() > cores_together(places_, ranks);
  });
  readable_ = host_count() == 1 && std::all_of(places_.begin(), places_.end(), [this](const Place& place) {
                return !place.reader.empty() && place.reader == places_[0].reader;
              });
}

int Topology::cores_of_host(int host) const { return static_cast<int>(cores_together(places_, ranks_of_host(host))); }

// Whether ranks share cores does not change.
Topology Topology::without_shared_memory() const {
  std::vector<Place> places = places_;
  for (const Rank rank : ranks_) places[static_cast<std::size_t>(rank)].host += "/rank-" + std::to_string(rank);
  Topology topology(std::move(places));
  topology.oversubscribed_ = oversubscribed_;
  return topology;
}

bool is_one_process(const Place& a, const Place& b) {
  return a.host == b.host && a.process_space == b.process_space && a.process == b.process;
}

Topology Topology::uniform(int size) {
  std::vector<Place> places;
  places.reserve(static_cast<std::size_t>(std::max(size, 0)));
  for (int rank = 0; rank < size; ++rank) {
    places.push_back(Place{
        .host = "uniform", .process = rank + 1, .cpus = {rank}, .numa_nodes = {0}, .cores = 1, .core_ids = {rank}});
  }
  return Topology(std::move(places));
}

}  // namespace accord::topology
