// The registry of the built-in algorithms, one row each. The first algorithm of a collective has no limits of size.

#include "plan/algorithms/catalog.hpp"

#include <fmt/format.h>

#include <array>

#include "base/text.hpp"
#include "plan/algorithms/host_tree.hpp"
#include "plan/registry.hpp"

namespace accord::plan {
namespace {

/// Marks plans that only copy the inputs of peers and do nothing else with their buffers.
constexpr AlgorithmEntry reading(AlgorithmEntry entry) {
  entry.only_reads = true;
  return entry;
}

/// Marks plans with multicast. The switch computes sums of all ranks at once, without division.
constexpr AlgorithmEntry multicasting(AlgorithmEntry entry) {
  entry.multicasts = true;
  entry.adds_in_parts = entry.order != Order::kNone;
  return entry;
}

constexpr std::array kAlgorithms = {
    AlgorithmEntry{Collective::kBarrier, "direct", barrier_direct, "all-to-all flags"},
    AlgorithmEntry{Collective::kBarrier, "dissemination", barrier_dissemination, "Hensgen, Finkel, Manber 1988"},
    AlgorithmEntry{Collective::kBarrier, "binomial", barrier_binomial, "tree barrier; Mellor-Crummey, Scott 1991"},
    AlgorithmEntry{Collective::kBarrier, "hierarchical", barrier_hierarchical,
                   "two levels; Karonis, de Supinski, Foster and others 2000", Order::kNone, Buffers::kAnywhere,
                   nullptr, shares_hosts},
    AlgorithmEntry{Collective::kBroadcast, "direct", broadcast_direct, "flat tree; Graham, Shipman 2008"},
    AlgorithmEntry{Collective::kBroadcast, "packet", broadcast_packet, "flat tree over the LL protocol of NCCL"},
    AlgorithmEntry{Collective::kBroadcast, "binomial", broadcast_binomial,
                   "Thakur, Rabenseifner, Gropp 2005, section 4.2"},
    AlgorithmEntry{Collective::kBroadcast, "chain", broadcast_chain, "pipeline; Pjesivac-Grbovic and others 2007"},
    AlgorithmEntry{Collective::kBroadcast, "scatter_all_gather", broadcast_scatter_all_gather,
                   "Barnett, van de Geijn and others 1994"},
    AlgorithmEntry{Collective::kBroadcast, "hierarchical", broadcast_hierarchical,
                   "two levels; Karonis, de Supinski, Foster and others 2000", Order::kNone, Buffers::kAnywhere,
                   nullptr, shares_hosts},
    multicasting({Collective::kBroadcast, "nvls", broadcast_nvls, "NVLink SHARP; NCCL 2.17"}),
    reading({Collective::kBroadcast, "zero_copy", broadcast_zero_copy, "flat tree; Graham, Shipman 2008", Order::kNone,
             Buffers::kInWindows}),
    AlgorithmEntry{Collective::kAllGather, "direct", all_gather_direct,
                   "direct exchange; Thakur, Rabenseifner, Gropp 2005"},
    AlgorithmEntry{Collective::kAllGather, "packet", all_gather_packet, "direct exchange over the LL protocol of NCCL"},
    AlgorithmEntry{Collective::kAllGather, "ring", all_gather_ring, "Thakur, Rabenseifner, Gropp 2005, section 4.1"},
    AlgorithmEntry{Collective::kAllGather, "recursive_doubling", all_gather_recursive_doubling,
                   "Thakur, Rabenseifner, Gropp 2005, section 4.1"},
    AlgorithmEntry{Collective::kAllGather, "bruck", all_gather_bruck, "Bruck, Ho, Kipnis, Upfal, Weathersby 1997"},
    AlgorithmEntry{Collective::kAllGather, "hierarchical", all_gather_hierarchical,
                   "two levels; Karonis, de Supinski, Foster and others 2000", Order::kNone, Buffers::kAnywhere,
                   nullptr, shares_hosts},
    multicasting({Collective::kAllGather, "nvls", all_gather_nvls, "NVLink SHARP; NCCL 2.17"}),
    reading({Collective::kAllGather, "zero_copy", all_gather_zero_copy,
             "direct exchange; Thakur, Rabenseifner, Gropp 2005", Order::kNone, Buffers::kInWindows}),
    AlgorithmEntry{Collective::kReduceScatter, "direct", reduce_scatter_direct,
                   "direct exchange; Thakur, Rabenseifner, Gropp 2005", Order::kCanonical},
    AlgorithmEntry{Collective::kReduceScatter, "packet", reduce_scatter_packet,
                   "direct exchange over the LL protocol of NCCL", Order::kCanonical},
    AlgorithmEntry{Collective::kReduceScatter, "recursive_halving", reduce_scatter_recursive_halving,
                   "Thakur, Rabenseifner, Gropp 2005, section 4.4", Order::kCanonical},
    AlgorithmEntry{Collective::kReduceScatter, "ring", reduce_scatter_ring, "Patarasuk, Yuan 2009", Order::kFixed},
    AlgorithmEntry{Collective::kReduceScatter, "hierarchical", reduce_scatter_hierarchical,
                   "multi-leader; Bayatpour and others 2017", Order::kCanonical, Buffers::kAnywhere, nullptr,
                   is_hierarchy, true},
    multicasting({Collective::kReduceScatter, "nvls", reduce_scatter_nvls, "NVLink SHARP; NCCL 2.17", Order::kSwitch}),
    AlgorithmEntry{Collective::kReduceScatter, "zero_copy", reduce_scatter_zero_copy,
                   "direct exchange; Thakur, Rabenseifner, Gropp 2005", Order::kCanonical, Buffers::kInWindows},
    AlgorithmEntry{Collective::kAllReduce, "two_shot", all_reduce_two_shot,
                   "Thakur, Rabenseifner, Gropp 2005, section 4.5", Order::kCanonical},
    AlgorithmEntry{Collective::kAllReduce, "one_shot", all_reduce_one_shot, "all-pairs; MSCCL++ 2025",
                   Order::kCanonical},
    AlgorithmEntry{Collective::kAllReduce, "packet", all_reduce_packet,
                   "all-pairs over the LL protocol of NCCL; MSCCL++ 2025", Order::kCanonical},
    AlgorithmEntry{Collective::kAllReduce, "recursive_doubling", all_reduce_recursive_doubling,
                   "Thakur, Rabenseifner, Gropp 2005, section 4.5", Order::kCanonical},
    AlgorithmEntry{Collective::kAllReduce, "rabenseifner", all_reduce_rabenseifner, "Rabenseifner 2004",
                   Order::kCanonical},
    AlgorithmEntry{Collective::kAllReduce, "hierarchical", all_reduce_hierarchical,
                   "multi-leader; Bayatpour and others 2017", Order::kCanonical, Buffers::kAnywhere, nullptr,
                   is_hierarchy, true},
    AlgorithmEntry{Collective::kAllReduce, "ring", all_reduce_ring, "Patarasuk, Yuan 2009", Order::kFixed},
    multicasting({Collective::kAllReduce, "nvls", all_reduce_nvls, "NVLink SHARP; NCCL 2.17", Order::kSwitch}),
    AlgorithmEntry{Collective::kAllReduce, "two_shot_zero_copy", all_reduce_two_shot_zero_copy,
                   "Thakur, Rabenseifner, Gropp 2005, section 4.5", Order::kCanonical, Buffers::kInWindows},
    AlgorithmEntry{Collective::kAllReduce, "one_shot_zero_copy", all_reduce_one_shot_zero_copy,
                   "all-pairs; MSCCL++ 2025", Order::kCanonical, Buffers::kInWindowsApart},
    AlgorithmEntry{Collective::kReduce, "two_shot", reduce_two_shot, "Thakur, Rabenseifner, Gropp 2005, section 4.4",
                   Order::kCanonical},
    AlgorithmEntry{Collective::kReduce, "direct", reduce_direct, "flat tree; Graham, Shipman 2008", Order::kCanonical},
    AlgorithmEntry{Collective::kReduce, "packet", reduce_packet, "flat tree over the LL protocol of NCCL",
                   Order::kCanonical},
    AlgorithmEntry{Collective::kReduce, "binomial", reduce_binomial, "Thakur, Rabenseifner, Gropp 2005, section 4.4",
                   Order::kCanonical},
    AlgorithmEntry{Collective::kReduce, "hierarchical", reduce_hierarchical,
                   "two levels; Karonis, de Supinski, Foster and others 2000", Order::kCanonical, Buffers::kAnywhere,
                   nullptr, is_hierarchy, true},
    AlgorithmEntry{Collective::kReduce, "zero_copy", reduce_zero_copy, "flat tree; Graham, Shipman 2008",
                   Order::kCanonical, Buffers::kInWindows},
    AlgorithmEntry{Collective::kGather, "direct", gather_direct, "flat tree; Graham, Shipman 2008"},
    AlgorithmEntry{Collective::kGather, "packet", gather_packet, "flat tree over the LL protocol of NCCL"},
    AlgorithmEntry{Collective::kGather, "binomial", gather_binomial, "binomial tree; Thakur, Rabenseifner, Gropp 2005"},
    reading({Collective::kGather, "zero_copy", gather_zero_copy, "flat tree; Graham, Shipman 2008", Order::kNone,
             Buffers::kInWindows}),
    AlgorithmEntry{Collective::kScatter, "direct", scatter_direct, "flat tree; Graham, Shipman 2008"},
    AlgorithmEntry{Collective::kScatter, "packet", scatter_packet, "flat tree over the LL protocol of NCCL"},
    AlgorithmEntry{Collective::kScatter, "binomial", scatter_binomial,
                   "binomial tree; Thakur, Rabenseifner, Gropp 2005"},
    reading({Collective::kScatter, "zero_copy", scatter_zero_copy, "flat tree; Graham, Shipman 2008", Order::kNone,
             Buffers::kInWindows}),
    AlgorithmEntry{Collective::kAllToAll, "direct", all_to_all_direct,
                   "direct exchange; Thakur, Rabenseifner, Gropp 2005"},
    AlgorithmEntry{Collective::kAllToAll, "packet", all_to_all_packet, "direct exchange over the LL protocol of NCCL"},
    AlgorithmEntry{Collective::kAllToAll, "pairwise", all_to_all_pairwise,
                   "Thakur, Rabenseifner, Gropp 2005, section 4.3"},
    AlgorithmEntry{Collective::kAllToAll, "bruck", all_to_all_bruck, "Bruck, Ho, Kipnis, Upfal, Weathersby 1997"},
    AlgorithmEntry{Collective::kAllToAll, "hierarchical", all_to_all_hierarchical, "two levels; Traff, Rougier 2014",
                   Order::kNone, Buffers::kAnywhere, nullptr, shares_hosts},
    reading({Collective::kAllToAll, "zero_copy", all_to_all_zero_copy,
             "direct exchange; Thakur, Rabenseifner, Gropp 2005", Order::kNone, Buffers::kInWindowsApart}),
    AlgorithmEntry{Collective::kSendRecv, "direct", send_recv_direct, "copy in, copy out"},
    AlgorithmEntry{Collective::kSendRecv, "packet", send_recv_packet, "the LL protocol of NCCL"},
};

constexpr AlgorithmEntry of_nccl(Collective collective, Order order = Order::kNone) {
  AlgorithmEntry entry{collective, "nccl", nullptr, "NVIDIA's library", order};
  entry.is_library = true;
  return entry;
}

constexpr std::array kLibraries = {
    of_nccl(Collective::kBroadcast),
    of_nccl(Collective::kAllGather),
    of_nccl(Collective::kReduceScatter, Order::kFixed),
    of_nccl(Collective::kAllReduce, Order::kFixed),
    of_nccl(Collective::kReduce, Order::kFixed),
    of_nccl(Collective::kGather),
    of_nccl(Collective::kScatter),
    of_nccl(Collective::kAllToAll),
};

}  // namespace

std::span<const AlgorithmEntry> algorithms() { return kAlgorithms; }

Result<const AlgorithmEntry*> algorithm_by_name(Collective collective, std::string_view name) {
  std::vector<std::string_view> names;
  for (const AlgorithmEntry& entry : kAlgorithms) {
    if (entry.collective != collective) continue;
    if (entry.name == name) return &entry;
    names.push_back(entry.name);
  }
  for (const AlgorithmEntry& entry : kLibraries)
    if (entry.collective == collective && entry.name == name) return &entry;
  if (const AlgorithmEntry* entry = registered_algorithm(collective, name)) return entry;
  for (const AlgorithmEntry* entry : registered_algorithms())
    if (entry->collective == collective) names.push_back(entry->name);
  const Status unknown = unknown_name(std::string(to_string(collective)) + " algorithm", name, names);
  return Status(StatusCode::kNotFound, unknown.message());
}

Result<Plan> make_plan(const AlgorithmEntry& entry, const topology::Topology& topology, const Request& request) {
  if (entry.is_library)
    return Status(StatusCode::kUnsupported, fmt::format("{} is implemented by a library and has no plans", entry.name));
  if (entry.registered == nullptr) return entry.make(topology, request);
  const Plan* whole = entry.registered->find(topology.size(), request.root);
  if (whole == nullptr)
    return Status(StatusCode::kNotFound, fmt::format("no plan \"{}\" for {} ranks and root {} is registered",
                                                     entry.name, topology.size(), request.root));
  Plan own = *whole;
  for (Rank rank = 0; rank < own.size && request.only_rank != Request::kAllRanks; ++rank)
    if (rank != request.only_rank) own.programs[static_cast<std::size_t>(rank)] = {};
  return own;
}

bool needs_multicast(const AlgorithmEntry& entry, int size, Rank root) {
  if (entry.registered == nullptr) return entry.multicasts;
  const Plan* const plan = entry.registered->find(size, root);
  return plan != nullptr && plan->multicast_chunks > 0;
}

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
