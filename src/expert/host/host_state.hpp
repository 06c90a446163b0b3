#pragma once
// State of a HostDispatcher that both directions of rows use.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/store_chooser.hpp"
#include "expert/group_setup.hpp"
#include "expert/host/gathered_weights.hpp"
#include "expert/host/shared_rows.hpp"
#include "expert/rendezvous.hpp"
#include "expert/token_tree.hpp"
#include "kernels/row_tree.hpp"

namespace accord::expert {

/// Memory that calls keep for the next ones, so that a repeated step allocates nothing.
struct Scratch {
  std::vector<std::size_t> counts;         ///< indexed by rank
  std::vector<std::size_t> back_counts;    ///< indexed by rank
  std::vector<std::byte> outgoing;         ///< rows and sums that leave the domain
  std::vector<std::byte> incoming;         ///< sums that arrive from other domains
  std::vector<Leaf> leaves;                ///< [top_k]
  std::vector<kernels::TreeRow> operands;  ///< [top_k]
  std::vector<std::int32_t> keys;          ///< [top_k]: of operands
  std::vector<const std::byte*> pieces;    ///< indexed by rank: next piece to read
};

/// Memory of at least `bytes` bytes. Keeps its contents when it grows.
inline std::byte* grown(std::vector<std::byte>& memory, std::size_t bytes) {
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

struct HostState {
  HostState(const GroupSetup& setup, SharedRows shared_rows);

  Communicator communicator;
  SharedRows shared;
  Rendezvous rendezvous;
  GatheredWeights weights;
  int max_nodes;  ///< see max_nodes() of placement.hpp
  MergeOrder merge_order;
  exec::StoreChooser push_stores, pull_stores;
  Scratch scratch;

  Rank rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }
};

}  // namespace accord::expert
