#pragma once
// How ranks exchange data in most algorithms: the order in which a rank visits its peers, where it stores data for
// them, and the signals that say so.

#include <vector>

#include "plan/builder.hpp"
#include "topology/topology.hpp"

namespace accord::plan {

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
