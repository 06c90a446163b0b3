#include "sim/simulate.hpp"

#include <memory>
#include <optional>

#include "sim/simulation.hpp"

namespace accord::sim {

Result<Times> simulate(const Schedule& schedule, const Machine& machine, const topology::Topology& topology,
                       Sharing sharing, Journal* journal) {
  std::optional<Network> network;
  if (topology.host_count() > 1) network.emplace(machine.network, topology.host_count());
  Simulation simulation(schedule, machine, topology, network ? &*network : nullptr, sharing, journal);
  ACCORD_ASSIGN_OR_RETURN(Times times, simulation.run());
  if (network) times.links = network->links();
  return times;
}

Result<Times> simulate(Programs programs, const Machine& machine, const topology::Topology& topology, Sharing sharing,
                       Journal* journal) {
  const int ranks = programs.ranks;
  const Schedule schedule = schedule_of(std::make_shared<const Programs>(std::move(programs)), "call");
  ACCORD_ASSIGN_OR_RETURN(Times times, simulate(schedule, machine, topology, sharing, journal));
  const std::size_t simulated = times.ranks.size();
  const int hosts = topology.host_of(static_cast<Rank>(simulated) - 1) + 1;
  times.ranks.resize(to_size(ranks));
  for (std::size_t rank = simulated; rank < times.ranks.size(); ++rank)
    times.ranks[rank] = times.ranks[rank % simulated];
  if (simulated == times.ranks.size()) return times;
  const Network network(machine.network, topology.host_count());
  for (std::size_t link = 0; link < times.links.size(); ++link)
    times.link_bytes[link] = times.link_bytes[to_size(network.representative(static_cast<LinkId>(link), hosts))];
  return times;
}

}  // namespace accord::sim
