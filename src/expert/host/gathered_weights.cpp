// Weights are small compared to rows: every rank gathers all of them and uses its own.
#include "expert/host/gathered_weights.hpp"

#include <cstring>
#include <numeric>

#include "base/rounding.hpp"

namespace accord::expert {
namespace {

void store_weight(const Buffer& to, std::int64_t at, double weight) {
  if (to.dtype == DType::kFloat64)
    static_cast<double*>(to.data)[at] = weight;
  else
    static_cast<float*>(to.data)[at] = static_cast<float>(weight);
}

}  // namespace

GatheredWeights::GatheredWeights(const GroupSetup& setup)
    : communicator_(setup.communicator),
      gathered_(to_size(setup.size()) * to_size(setup.config.max_tokens_per_rank) * to_size(setup.config.top_k)),
      counts_(to_size(setup.size())),
      firsts_(counts_.size()) {}

Status GatheredWeights::gather(const ConstBuffer& weights, DType dtype) {
  const std::size_t all = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
  if (gathered_.size() < all) gathered_.resize(all);
  ACCORD_RETURN_IF_ERROR(communicator_.all_gather_v({weights.data, counts_[communicator_.rank()], dtype},
                                                    {gathered_.data(), all, dtype, {}}, counts_));
  if (dtype == DType::kFloat64) return {};
  // Widen in place from the last one down, since each takes twice the space.
  const auto* const bytes = reinterpret_cast<const std::byte*>(gathered_.data());
  for (std::size_t i = all; i-- > 0;) {
    float weight;
    std::memcpy(&weight, bytes + i * sizeof weight, sizeof weight);
    gathered_[i] = weight;
  }
  return {};
}

Status GatheredWeights::gather(const Handle& handle, const ConstBuffer& weights, DType dtype) {
  for (Rank r = 0; r < communicator_.size(); ++r)
    counts_[r] = to_size(handle.routing.tokens_of(r) * handle.layer.top_k);
  return gather(weights, dtype);
}

Status GatheredWeights::deliver(const Handle& handle, const ConstBuffer& weights, const Buffer& recv_weights,
                                DType dtype) {
  ACCORD_RETURN_IF_ERROR(gather(handle, weights, dtype));
  for (std::int64_t slot = 0; slot < handle.recv_rows(); ++slot) store_weight(recv_weights, slot, 0);
  const Routing& routing = handle.routing;
  for (std::int64_t c = 0; c < routing.choices(); ++c)
    if (routing.place[c] >= 0 && handle.holder(c) == handle.rank)
      store_weight(recv_weights, routing.slot[c], gathered_[c]);
  return {};
}

Status GatheredWeights::give_back(const Handle& handle, const ConstBuffer& grad, const Buffer& grad_weights,
                                  DType dtype) {
  for (Rank r = 0; r < communicator_.size(); ++r) counts_[r] = to_size(handle.routing.ranks[r].recv_rows);
  ACCORD_RETURN_IF_ERROR(gather(grad, dtype));
  std::exclusive_scan(counts_.begin(), counts_.end(), firsts_.begin(), std::size_t{0});
  const Routing& routing = handle.routing;
  const std::int64_t first = routing.choice(handle.rank, 0, 0), choices = handle.tokens() * handle.layer.top_k;
  for (std::int64_t i = 0; i < choices; ++i) {
    const std::int64_t c = first + i;
    const bool is_kept = routing.place[c] >= 0;
    store_weight(grad_weights, i, is_kept ? gathered_[firsts_[handle.holder(c)] + to_size(routing.slot[c])] : 0);
  }
  return {};
}

}  // namespace accord::expert
