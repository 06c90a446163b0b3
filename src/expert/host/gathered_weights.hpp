#pragma once
// The weights of all ranks.

#include <cstddef>
#include <span>
#include <vector>

#include "expert/group_setup.hpp"
#include "expert/handle.hpp"

namespace accord::expert {

/// Gathers weights of a call's dtype from all ranks, and widens them. Each call below is collective.
class GatheredWeights {
 public:
  explicit GatheredWeights(const GroupSetup& setup);

  /// Gathers the [tokens, top_k] weights of all ranks. values() has those of all choices then.
  Status gather(const Handle& handle, const ConstBuffer& weights, DType dtype);
  std::span<const double> values() const { return gathered_; }
  /// Fills recv_weights from the weights of all ranks.
  Status deliver(const Handle& handle, const ConstBuffer& weights, const Buffer& recv_weights, DType dtype);
  /// Fills grad_weights from the grad_recv_weights of all ranks.
  Status give_back(const Handle& handle, const ConstBuffer& grad, const Buffer& grad_weights, DType dtype);

 private:
  /// counts_ has the number of weights of each rank.
  Status gather(const ConstBuffer& weights, DType dtype);

  Communicator communicator_;
  std::vector<double> gathered_;     // of all ranks' choices or rows
  std::vector<std::size_t> counts_;  // indexed by rank
  std::vector<std::size_t> firsts_;  // indexed by rank
};

}  // namespace accord::expert
