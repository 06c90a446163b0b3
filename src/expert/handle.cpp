#include "expert/handle.hpp"

#include <algorithm>

#include "expert/fingerprint.hpp"

namespace accord::expert {

void Handle::reserve(const ExpertGroupConfig& config) {
  const int ranks = placement->ranks();
  routing.shape = {layer.top_k, layer.alignment, config.max_recv_rows};
  expert::reserve(routing, *placement, std::int64_t{ranks} * config.max_tokens_per_rank * layer.top_k);
  traffic.resize(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks));
  loads.resize(static_cast<std::size_t>(config.experts));
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

Status Handle::fetch(Stream stream) {
  if (device == nullptr) return {};
  device->is_fetched = true;
  Status fetched = device->copy_to(routing, *placement, stream);
  const bool fails = fetched.ok() && routing.overflows && device->map().dropping == Dropping::kNone;
  if (fails) fetched = overflow_error(routing, group_name);
  device->fetched = fetched;
  if (fetched.ok()) {
    add_up();
    return {};
  }
  // A map that cannot be fetched is treated as one without tokens.
  std::fill(routing.first_token.begin(), routing.first_token.end(), 0);
  route(routing, *placement);
  add_up();
  return fetched;
}

}  // namespace accord::expert
