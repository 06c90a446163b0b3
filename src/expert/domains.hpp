#pragma once
// Which ranks of a group share memory, and who takes in rows from elsewhere for them.

#include <vector>

#include "accord/communicator.hpp"
#include "accord/expert_parallel.hpp"
#include "accord/window.hpp"

namespace accord::expert {

/// Ranks that share memory are a domain. A row from another domain comes in by one rank of the domain, its proxy there, which is the one with
/// the place of the row's rank in its own domain, counted around.
class Domains {
 public:
  /// `of`: a number for each rank, equal for those of a domain.
  explicit Domains(const std::vector<int>& of);

  int count() const { return static_cast<int>(ranks_.size()); }
  int of(Rank rank) const { return of_[static_cast<std::size_t>(rank)]; }
  /// Ascending.
  const std::vector<Rank>& ranks(int domain) const { return ranks_[static_cast<std::size_t>(domain)]; }
  bool shared(Rank a, Rank b) const { return of(a) == of(b); }
  /// By whom rows of `rank` come into `domain`; the rank itself in its own.
  Rank proxy(Rank rank, int domain) const;
  /// The ranks of other domains for which `rank` is the proxy, ascending.
  std::vector<Rank> guests(Rank rank) const;

 private:
  std::vector<int> of_;                   // by rank
  std::vector<int> place_;                // by rank: among those of its domain
  std::vector<std::vector<Rank>> ranks_;  // by domain
};

/// The domains of an algorithm over ranks that map each other's memory of `window` or not. Collective. kUnsupported: kDirect where some
/// ranks do not share memory.
Result<Domains> find_domains(Communicator& communicator, const Window& window, const ExpertGroupConfig& config);

}  // namespace accord::expert
