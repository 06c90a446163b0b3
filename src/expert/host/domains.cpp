// Each rank reports whose memory it maps. Ranks that report the same set, and are in it, share memory. If the sets
// are not consistent, no ranks share memory.
#include "expert/host/domains.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace accord::expert {

Domains::Domains(const std::vector<int>& of) : of_(of.size()), place_(of.size()) {
  std::map<int, int> numbers;
  for (std::size_t rank = 0; rank < of.size(); ++rank) {
    const auto [found, is_new] = numbers.try_emplace(of[rank], count());
    if (is_new) ranks_.emplace_back();
    std::vector<Rank>& ranks = ranks_[static_cast<std::size_t>(found->second)];
    of_[rank] = found->second;
    place_[rank] = static_cast<int>(ranks.size());
    ranks.push_back(static_cast<Rank>(rank));
  }
}

Rank Domains::proxy(Rank rank, int domain) const {
  const std::vector<Rank>& there = ranks(domain);
  return there[static_cast<std::size_t>(place_[static_cast<std::size_t>(rank)]) % there.size()];
}

std::vector<Rank> Domains::guests(Rank rank) const {
  std::vector<Rank> guests;
  for (Rank other = 0; other < static_cast<Rank>(of_.size()); ++other)
    if (!shared(rank, other) && proxy(other, of(rank)) == rank) guests.push_back(other);
  return guests;
}

Result<Domains> find_domains(Communicator& communicator, const Window& window, const ExpertGroupConfig& config) {
  const auto size = static_cast<std::size_t>(communicator.size());
  std::vector<std::uint8_t> mine(size), all(size * size);
  for (std::size_t rank = 0; rank < size; ++rank) mine[rank] = window.peer(static_cast<Rank>(rank)).empty() ? 0 : 1;
  ACCORD_RETURN_IF_ERROR(
      communicator.all_gather({mine.data(), size, DType::kUInt8}, {all.data(), size * size, DType::kUInt8, {}}));
  const auto maps = [&](std::size_t a) { return std::span(all).subspan(a * size, size); };

  std::vector<int> of(size);
  std::iota(of.begin(), of.end(), 0);
  bool agree = true;
  for (std::size_t a = 0; a < size; ++a) {
    const auto theirs = maps(a);
    const auto first = static_cast<std::size_t>(std::find(theirs.begin(), theirs.end(), 1) - theirs.begin());
    agree &= theirs[a] == 1 && std::equal(theirs.begin(), theirs.end(), maps(first).begin());
    of[a] = static_cast<int>(first);
  }
  if (!agree) std::iota(of.begin(), of.end(), 0);
  if (config.ranks_per_host > 0)
    for (std::size_t a = 0; a < size; ++a)
      of[a] = of[a] * communicator.size() + static_cast<int>(a) / config.ranks_per_host;
  if (config.algorithm == ExpertAlgorithm::kAllToAll) std::iota(of.begin(), of.end(), 0);
  Domains domains(of);
  if (config.algorithm != ExpertAlgorithm::kDirect || domains.count() == 1) return domains;
  const auto outsider = std::find_if(of.begin(), of.end(), [&](int it) { return it != of[0]; });
  return Status(StatusCode::kUnsupported,
                fmt::format("algorithm is direct, but ranks 0 and {} do not share memory", outsider - of.begin()));
}

}  // namespace accord::expert
