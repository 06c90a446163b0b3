#pragma once
// Expert parallelism by its definition: slow, and independent of the code under test.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "accord/expert_parallel.hpp"

namespace accord::testing {

/// The chosen expert, indexed [rank][token][k].
using Ids = std::vector<std::vector<std::vector<std::int64_t>>>;

/// Returns the lowest k at which the token chose `expert`, or -1.
inline int k_of(const std::vector<std::int64_t>& token, std::int64_t expert) {
  const auto found = std::find(token.begin(), token.end(), expert);
  return found == token.end() ? -1 : static_cast<int>(found - token.begin());
}

/// sources[rank][slot], where padding has rank -1; counts[rank][local expert].
struct Slots {
  std::vector<std::vector<ExpertChoice>> sources;
  std::vector<std::vector<std::int64_t>> counts;
};

/// Lists the choices of each expert in their order, with padding. With replicas, a token goes to the replica with
/// number (rank + token) modulo the number of replicas.
inline Slots slots_of(const Ids& ids, const ExpertPlacement& placement, int alignment) {
  Slots slots;
  for (std::size_t d = 0; d < placement.size(); ++d) {
    slots.sources.emplace_back();
    slots.counts.emplace_back();
    for (std::size_t local = 0; local < placement[d].size(); ++local) {
      const int expert = placement[d][local];
      int replicas = 0, replica = -1;
      for (std::size_t r = 0; r < placement.size(); ++r)
        for (std::size_t l = 0; l < placement[r].size(); ++l) {
          if (r == d && l == local) replica = replicas;
          replicas += placement[r][l] == expert ? 1 : 0;
        }
      const std::size_t before = slots.sources[d].size();
      for (std::size_t s = 0; s < ids.size(); ++s)
        for (std::size_t t = 0; t < ids[s].size(); ++t)
          if (const int k = k_of(ids[s][t], expert); k >= 0 && static_cast<int>(s + t) % replicas == replica)
            slots.sources[d].push_back({static_cast<Rank>(s), static_cast<std::int32_t>(t), k});
      while ((slots.sources[d].size() - before) % static_cast<std::size_t>(alignment) != 0)
        slots.sources[d].push_back({-1, -1, -1});
      slots.counts[d].push_back(static_cast<std::int64_t>(slots.sources[d].size() - before));
    }
  }
  return slots;
}

/// Returns random choices, including no choice, duplicates and invalid ids.
inline Ids random_ids(unsigned seed, const std::vector<int>& tokens, int experts, int top_k) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> any(0, experts - 1), kind(0, 19);
  Ids ids;
  for (const int count : tokens) {
    ids.emplace_back(static_cast<std::size_t>(count), std::vector<std::int64_t>(static_cast<std::size_t>(top_k)));
    for (auto& token : ids.back())
      for (std::int64_t& id : token) {
        const int choice = kind(random);
        id = choice == 0 ? -1 : choice == 1 ? -7 : choice == 2 ? experts + any(random) : any(random);
      }
  }
  return ids;
}

/// Value of element h of a token: a small integer, so that sums are exact in every order and dtype.
inline float value(Rank rank, std::int64_t token, std::int64_t h) {
  return static_cast<float>((rank * 31 + token * 7 + h * 3) % 13 - 6);
}
inline float slot_value(Rank rank, std::size_t slot, std::int64_t h) {
  return static_cast<float>((static_cast<std::int64_t>(slot) * 5 + rank * 11 + h) % 11 - 5);
}

}  // namespace accord::testing
