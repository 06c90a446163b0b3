#pragma once
// Shared by the algorithms' files: their declarations for the registry, and the order in which a rank visits its
// peers.

#include "plan/algorithms.hpp"

namespace accord::plan {

Result<Plan> barrier_direct(const topology::Topology& topology, const Request& request);
Result<Plan> barrier_dissemination(const topology::Topology& topology, const Request& request);
Result<Plan> barrier_binomial(const topology::Topology& topology, const Request& request);
Result<Plan> barrier_hierarchical(const topology::Topology& topology, const Request& request);
Result<Plan> broadcast_direct(const topology::Topology& topology, const Request& request);
Result<Plan> broadcast_packet(const topology::Topology& topology, const Request& request);
Result<Plan> broadcast_binomial(const topology::Topology& topology, const Request& request);
Result<Plan> broadcast_chain(const topology::Topology& topology, const Request& request);
Result<Plan> broadcast_scatter_all_gather(const topology::Topology& topology, const Request& request);
Result<Plan> broadcast_hierarchical(const topology::Topology& topology, const Request& request);
Result<Plan> broadcast_nvls(const topology::Topology& topology, const Request& request);
Result<Plan> broadcast_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> all_gather_direct(const topology::Topology& topology, const Request& request);
Result<Plan> all_gather_packet(const topology::Topology& topology, const Request& request);
Result<Plan> all_gather_ring(const topology::Topology& topology, const Request& request);
Result<Plan> all_gather_recursive_doubling(const topology::Topology& topology, const Request& request);
Result<Plan> all_gather_bruck(const topology::Topology& topology, const Request& request);
Result<Plan> all_gather_hierarchical(const topology::Topology& topology, const Request& request);
Result<Plan> all_gather_nvls(const topology::Topology& topology, const Request& request);
Result<Plan> all_gather_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_scatter_direct(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_scatter_packet(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_scatter_recursive_halving(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_scatter_ring(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_scatter_hierarchical(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_scatter_nvls(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_scatter_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_packet(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_one_shot(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_two_shot(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_recursive_doubling(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_rabenseifner(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_hierarchical(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_ring(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_nvls(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_two_shot_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> all_reduce_one_shot_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_two_shot(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_direct(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_packet(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_binomial(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_hierarchical(const topology::Topology& topology, const Request& request);
Result<Plan> reduce_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> gather_direct(const topology::Topology& topology, const Request& request);
Result<Plan> gather_packet(const topology::Topology& topology, const Request& request);
Result<Plan> gather_binomial(const topology::Topology& topology, const Request& request);
Result<Plan> gather_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> scatter_direct(const topology::Topology& topology, const Request& request);
Result<Plan> scatter_packet(const topology::Topology& topology, const Request& request);
Result<Plan> scatter_binomial(const topology::Topology& topology, const Request& request);
Result<Plan> scatter_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> all_to_all_direct(const topology::Topology& topology, const Request& request);
Result<Plan> all_to_all_packet(const topology::Topology& topology, const Request& request);
Result<Plan> all_to_all_pairwise(const topology::Topology& topology, const Request& request);
Result<Plan> all_to_all_bruck(const topology::Topology& topology, const Request& request);
Result<Plan> all_to_all_hierarchical(const topology::Topology& topology, const Request& request);
Result<Plan> all_to_all_zero_copy(const topology::Topology& topology, const Request& request);
Result<Plan> send_recv_direct(const topology::Topology& topology, const Request& request);
Result<Plan> send_recv_packet(const topology::Topology& topology, const Request& request);

/// All ranks but `rank`, starting with the next one and wrapping around, so that the ranks are busy with different
/// peers at any time.
std::vector<Rank> peers_of(Rank rank, int size);

// Inside a host, a rank publishes data for others in its own scratch; between hosts, where nothing can be read, it
// puts the data into theirs. These algorithms therefore run everywhere, and on a single host as if there were no
// others.

/// Where data from `from` for `to` alone are stored: each rank has a scratch chunk for each rank.
Chunk handover(const topology::Topology& topology, Rank from, Rank to);
/// The scratch chunk in which `to` finds what `from` publishes to all. A rank has published_chunks() such chunks.
Chunk published_chunk(const topology::Topology& topology, Rank from, Rank to);
int published_chunks(const topology::Topology& topology);
bool share_host(const topology::Topology& topology, Rank a, Rank b);
/// Rank `rank` copies `source` to published_chunk() for each of `readers`, and notifies them by signal `id`.
void publish(PlanBuilder& plan, const topology::Topology& topology, Rank rank, Chunk source,
             const std::vector<Rank>& readers, int id = 0);

/// The direct exchange of parts, as run by `rank`: hands over the chunks of its input that belong to others, notifies
/// each owner by signal `id`, and waits for theirs. Returns the sources of its own chunk's sum in rank order, which
/// is the canonical order; its own part is read in place, so scratch chunk `rank` stays free.
std::vector<Chunk> exchange_parts(PlanBuilder& plan, const topology::Topology& topology, Rank rank, int id);

// Shared by plans for buffers in windows: signals that announce where a rank's buffers are and that they may be
// accessed, and that the rank no longer accesses those of others.
inline constexpr int kBuffersReady = 0;
inline constexpr int kBuffersDone = 1;

/// Rank `rank` signals `id` to all others and waits for theirs.
void sync_peers(PlanBuilder& plan, Rank rank, int size, int id);

/// Rank `rank` copies each part p of its input to its own multicast chunk p, then waits until all ranks have done so:
/// the switch may now add up part p of all ranks.
void publish_to_switch(PlanBuilder& plan, Rank rank, int size);

/// Chunk `index` of the inputs of all ranks, in rank order.
std::vector<Chunk> inputs_of_all(int size, int index);

}  // namespace accord::plan
