#include "expert/host/shared_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/rounding.hpp"

namespace accord::expert {

Result<SharedRows> SharedRows::create(const GroupSetup& setup, std::size_t staging_bytes) {
  Communicator own = setup.communicator;
  ACCORD_ASSIGN_OR_RETURN(Window staging, own.window(staging_bytes));
  ACCORD_ASSIGN_OR_RETURN(Domains domains, find_domains(own, staging, setup.config));
  return SharedRows(setup, std::move(staging), std::move(domains));
}

SharedRows::SharedRows(const GroupSetup& setup, Window staging, Domains domains)
    : rank_(setup.rank()), size_(setup.size()), staging_(std::move(staging)), domains_(std::move(domains)) {
  for (Rank r = 0; r < size_; ++r) {
    guests_of_.push_back(domains_.guests(r));
    max_guests_ = std::max(max_guests_, guests_of_.back().size());
  }
}

std::span<std::byte> SharedRows::staging(Rank rank, std::int64_t round) const {
  const std::span<std::byte> memory = staging_.peer(rank);
  const std::size_t half = memory.size() / 2 / 64 * 64;
  return memory.subspan(to_size(round % 2) * half, half);
}

Status SharedRows::check(const Window& window) const {
  if (window.size() != size_ || window.rank() != rank_)
    return {StatusCode::kInvalidArgument, fmt::format("the window's rank is {} of {}, but the group's is {} of {}",
                                                      window.rank(), window.size(), rank_, size_)};
  for (const Rank r : domains_.ranks(domains_.of(rank_)))
    if (window.bytes(r) > 0 && window.peer(r).empty())
      return {StatusCode::kUnsupported, fmt::format("the memory of rank {} is not mapped here", r)};
  return {};
}

exec::PlaceWord SharedRows::place_of(const ConstBuffer& buffer) const {
  const auto* const data = static_cast<const std::byte*>(buffer.data);
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const std::span<const std::byte> local = windows_[i].local();
    const auto offset = static_cast<std::size_t>(data - local.data());
    if (data >= local.data() && offset <= local.size() && buffer.bytes() <= local.size() - offset)
      return exec::place_word(static_cast<int>(i), offset);
  }
  return exec::kNoPlace;
}

std::byte* SharedRows::address(exec::PlaceWord place, Rank rank) const {
  return windows_[to_size(exec::window_of(place))].peer(rank).data() + exec::offset_of(place);
}

}  // namespace accord::expert
