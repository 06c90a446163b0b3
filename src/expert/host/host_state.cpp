#include "expert/host/host_state.hpp"

#include "base/rounding.hpp"

namespace accord::expert {

HostState::HostState(const GroupSetup& setup, SharedRows shared_rows)
    : communicator(setup.communicator),
      shared(std::move(shared_rows)),
      rendezvous(communicator),
      weights(setup),
      max_nodes(expert::max_nodes(*setup.placement, setup.config.top_k)),
      merge_order(setup.config.top_k) {
  const std::size_t ranks = to_size(setup.size()), top_k = to_size(setup.config.top_k);
  scratch.counts.resize(ranks);
  scratch.back_counts.resize(ranks);
  scratch.pieces.resize(ranks);
  scratch.leaves.resize(top_k);
  scratch.operands.resize(top_k);
  scratch.keys.resize(top_k);
  rendezvous.share_clock_with(shared.domains().ranks(shared.domains().of(rank())));
}

}  // namespace accord::expert
