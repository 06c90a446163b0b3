// The processors that the launcher may use are grouped by core or by memory node, as reported by the topology. Cores
// are taken in the order of their memory nodes, so that neighbouring ranks are near each other.
#include "cli/launch/cpu_binding.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "topology/cores.hpp"
#include "topology/topology.hpp"

namespace accord::cli {
namespace {

using Processors = std::vector<int>;

// The groups that ranks are divided among: memory nodes, or cores in the order of their memory nodes.
std::vector<Processors> groups_of_processors(Binding binding, std::span<const ProcessorPlace> machine) {
  std::map<std::pair<int, int>, Processors> groups;
  for (const ProcessorPlace& place : machine) {
    groups[{place.numa_node, binding == Binding::kCore ? place.core : 0}].push_back(place.cpu);
  }
  std::vector<Processors> ordered;
  ordered.reserve(groups.size());
  for (auto& [place_in_machine, processors] : groups) ordered.push_back(std::move(processors));
  return ordered;
}

Result<std::vector<ProcessorPlace>> this_machine() {
  ACCORD_ASSIGN_OR_RETURN(const topology::Place place, topology::this_place());
  std::vector<ProcessorPlace> machine;
  for (const int cpu : place.cpus) {
    ACCORD_ASSIGN_OR_RETURN(const topology::Cores cores, topology::cores_of({cpu}));
    machine.push_back({cpu, cores.core_ids.empty() ? cpu : cores.core_ids.front(), cores.numa_nodes.front()});
  }
  return machine;
}

}  // namespace

Result<std::vector<std::vector<int>>> processors_of_ranks(Binding binding, int ranks) {
  if (binding == Binding::kNone) return std::vector<Processors>(static_cast<std::size_t>(ranks));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<ProcessorPlace> machine, this_machine());
  return processors_of_ranks(binding, ranks, machine);
}

std::vector<std::vector<int>> processors_of_ranks(Binding binding, int ranks, std::span<const ProcessorPlace> machine) {
  std::vector<Processors> bound(static_cast<std::size_t>(ranks));
  if (binding == Binding::kNone) return bound;
  const std::vector<Processors> groups = groups_of_processors(binding, machine);
  for (std::size_t rank = 0; rank < bound.size(); ++rank) {
    // Groups from rank * groups / ranks to (rank + 1) * groups / ranks, at least one; never more than one memory node.
    const std::size_t first = rank * groups.size() / bound.size();
    const std::size_t end = binding == Binding::kCore ? (rank + 1) * groups.size() / bound.size() : first + 1;
    for (std::size_t group = first; group < std::max(first + 1, end); ++group) {
      bound[rank].insert(bound[rank].end(), groups[group].begin(), groups[group].end());
    }
    std::sort(bound[rank].begin(), bound[rank].end());
  }
  return bound;
}

}  // namespace accord::cli
