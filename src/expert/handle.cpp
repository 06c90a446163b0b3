#include "expert/handle.hpp"

#include <algorithm>

#include "base/rounding.hpp"
#include "expert/fingerprint.hpp"

namespace accord::expert {

Handle::Handle(const ExpertLayerConfig& of_layer, const GroupSetup& setup)
    : layer(of_layer),
      placement(setup.placement),
      rank(setup.rank()),
      traffic(to_size(setup.size()) * to_size(setup.size())),
      loads(to_size(setup.config.experts)) {
  routing.shape = {layer.top_k, layer.alignment, setup.config.max_recv_rows};
  reserve(routing, *placement, std::int64_t{setup.size()} * setup.config.max_tokens_per_rank * layer.top_k);
}

void Handle::add_up() {
  std::fill(traffic.begin(), traffic.end(), 0);
  std::fill(loads.begin(), loads.end(), 0);
  fingerprint = 0;
  for (Rank from = 0; from < placement->ranks(); ++from)
    fingerprint += tokens_fingerprint(from, routing.tokens_of(from));
  routing.for_each_choice([&](Rank from, std::int64_t token, int k, std::int64_t choice) {
    if (routing.expert[choice] >= 0) ++loads[routing.expert[choice]];
    const std::int32_t place = routing.place[choice];
    if (place < 0) return;
    ++traffic[from * placement->ranks() + placement->holder[place]];
    fingerprint += choice_fingerprint(from, token, k, place);
  });
}

}  // namespace accord::expert
