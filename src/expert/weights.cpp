// Weights are small compared to rows: every rank gathers all of them and uses its own.
#include <cstring>
#include <numeric>

#include "expert/group.hpp"

namespace accord::expert {
namespace {

void store_weight(const Buffer& to, std::int64_t at, double weight) {
  if (to.dtype == DType::kFloat64)
    static_cast<double*>(to.data)[at] = weight;
  else
    static_cast<float*>(to.data)[at] = static_cast<float>(weight);
}

}  // namespace

Status Group::gather_weights(const ConstBuffer& weights) {
  const std::size_t all = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
  if (gathered_weights_.size() < all) gathered_weights_.resize(all);
  const DType dtype = rendezvous_.weights();
  ACCORD_RETURN_IF_ERROR(communicator_.all_gather_v({weights.data, counts_[rank()], dtype},
                                                    {gathered_weights_.data(), all, dtype, {}}, counts_));
  if (dtype == DType::kFloat64) return {};
  // Widen in place from the last one down, since each takes twice the space.
  const auto* const bytes = reinterpret_cast<const std::byte*>(gathered_weights_.data());
  for (std::size_t i = all; i-- > 0;) {
    float weight;
    std::memcpy(&weight, bytes + i * sizeof weight, sizeof weight);
    gathered_weights_[i] = weight;
  }
  return {};
}

Status Group::gather_token_weights(const Handle& handle, const ConstBuffer& weights) {
  for (Rank r = 0; r < size(); ++r)
    counts_[r] = static_cast<std::size_t>(handle.routing.tokens_of(r) * handle.layer.top_k);
  return gather_weights(weights);
}

Status Group::deliver_weights(const Handle& handle, const ConstBuffer& weights, const Buffer& recv_weights) {
  ACCORD_RETURN_IF_ERROR(gather_token_weights(handle, weights));
  for (std::int64_t slot = 0; slot < handle.recv_rows(); ++slot) store_weight(recv_weights, slot, 0);
  const Routing& routing = handle.routing;
  for (std::int64_t c = 0; c < routing.choices(); ++c)
    if (routing.place[c] >= 0 && handle.holder(c) == rank())
      store_weight(recv_weights, routing.slot[c], gathered_weights_[c]);
  return {};
}

Status Group::return_weights(const Handle& handle, const ConstBuffer& grad, const Buffer& grad_weights) {
  for (Rank r = 0; r < size(); ++r) counts_[r] = static_cast<std::size_t>(handle.routing.ranks[r].recv_rows);
  ACCORD_RETURN_IF_ERROR(gather_weights(grad));
  std::vector<std::size_t>& firsts = back_counts_;
  std::exclusive_scan(counts_.begin(), counts_.end(), firsts.begin(), std::size_t{0});
  const Routing& routing = handle.routing;
  const std::int64_t first = routing.choice(rank(), 0, 0), choices = handle.tokens() * handle.layer.top_k;
  for (std::int64_t i = 0; i < choices; ++i) {
    const std::int64_t c = first + i;
    const bool is_kept = routing.place[c] >= 0;
    store_weight(grad_weights, i,
                 is_kept ? gathered_weights_[firsts[handle.holder(c)] + static_cast<std::size_t>(routing.slot[c])] : 0);
  }
  return {};
}

}  // namespace accord::expert
