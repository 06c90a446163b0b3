#include "expert/handle.hpp"

#include <algorithm>

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
  routing.for_each_choice([&](Rank from, std::int64_t, int, std::int64_t choice) {
    if (routing.expert[choice] >= 0) ++loads[routing.expert[choice]];
    if (routing.place[choice] >= 0) ++traffic[from * placement->ranks() + holder(choice)];
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
  // What is not known is as if nobody had chosen anything.
  std::fill(routing.first_token.begin(), routing.first_token.end(), 0);
  route(routing, *placement);
  add_up();
  return fetched;
}

}  // namespace accord::expert
