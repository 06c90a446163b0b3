#include "plan/algorithms/exchange.hpp"

namespace accord::plan {

std::vector<Rank> peers_of(Rank rank, int size) {
  std::vector<Rank> peers;
  for (int step = 1; step < size; ++step) peers.push_back((rank + step) % size);
  return peers;
}

bool share_host(const topology::Topology& topology, Rank a, Rank b) {
  return topology.host_of(a) == topology.host_of(b);
}

// No two of these collide: what a rank publishes to its host is in the chunk of a rank of its host, what it receives
// in the chunk of a rank of another host.
Chunk handover(const topology::Topology& topology, Rank from, Rank to) {
  return share_host(topology, from, to) ? scratch(from, to) : scratch(to, from);
}

Chunk published_chunk(const topology::Topology& topology, Rank from, Rank to) {
  const int chunk = topology.host_count() == 1 ? 0 : from;
  return scratch(share_host(topology, from, to) ? from : to, chunk);
}

int published_chunks(const topology::Topology& topology) { return topology.host_count() == 1 ? 1 : topology.size(); }

void publish(PlanBuilder& plan, const topology::Topology& topology, Rank rank, Chunk source,
             const std::vector<Rank>& readers, int id) {
  bool is_published = false;
  for (const Rank reader : readers) {
    if (!share_host(topology, rank, reader)) {
      plan.on(rank).copy(source, {published_chunk(topology, rank, reader)}).signal(reader, id);
    } else if (!is_published) {
      plan.on(rank).copy(source, {published_chunk(topology, rank, reader)});
      is_published = true;
    }
  }
  for (const Rank reader : readers)
    if (share_host(topology, rank, reader)) plan.on(rank).signal(reader, id);
}

std::vector<Chunk> exchange_parts(PlanBuilder& plan, const topology::Topology& topology, Rank rank, int id) {
  const int size = topology.size();
  for (const Rank owner : peers_of(rank, size))
    plan.on(rank).copy(input(rank, owner), {handover(topology, rank, owner)}).signal(owner, id);
  for (const Rank peer : peers_of(rank, size)) plan.on(rank).wait(peer, id);
  std::vector<Chunk> sources;
  sources.reserve(static_cast<std::size_t>(size));
  for (Rank peer = 0; peer < size; ++peer)
    sources.push_back(peer == rank ? input(rank, rank) : handover(topology, peer, rank));
  return sources;
}

void sync_peers(PlanBuilder& plan, Rank rank, int size, int id) {
  for (const Rank peer : peers_of(rank, size)) plan.on(rank).signal(peer, id);
  for (const Rank peer : peers_of(rank, size)) plan.on(rank).wait(peer, id);
}

void publish_to_switch(PlanBuilder& plan, Rank rank, int size) {
  for (Rank part = 0; part < size; ++part) plan.on(rank).copy(input(rank, part), {multicast(rank, part)});
  sync_peers(plan, rank, size, 0);
}

std::vector<Chunk> inputs_of_all(int size, int index) {
  std::vector<Chunk> inputs;
  inputs.reserve(static_cast<std::size_t>(size));
  for (Rank rank = 0; rank < size; ++rank) inputs.push_back(input(rank, index));
  return inputs;
}

}  // namespace accord::plan
