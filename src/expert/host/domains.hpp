#pragma once
// Which ranks of a group share memory, and which ranks receive rows from elsewhere on their behalf.

#include <vector>

#include "accord/communicator.hpp"
#include "accord/expert_parallel.hpp"
#include "accord/window.hpp"

namespace accord::expert {

/// Divides the ranks into domains: ranks that share memory. A row from another domain enters through one rank of this
/// domain, its proxy: the rank whose position in this domain equals the position of the row's rank in its own domain,
/// modulo the size of this domain.
class Domains {
 public:
  /// `of`: a number for each rank, equal for the ranks of a domain.
  explicit Domains(const std::vector<int>& of);

  int count() const { return static_cast<int>(ranks_.size()); }
  int of(Rank rank) const { return of_[static_cast<std::size_t>(rank)]; }
  /// Ascending.
  const std::vector<Rank>& ranks(int domain) const { return ranks_[static_cast<std::size_t>(domain)]; }
  bool shared(Rank a, Rank b) const { return of(a) == of(b); }
  /// The rank through which rows of `rank` enter `domain`; `rank` itself in its own domain.
  Rank proxy(Rank rank, int domain) const;
  /// The ranks of other domains whose proxy is `rank`, ascending.
  std::vector<Rank> guests(Rank rank) const;

 private:
  std::vector<int> of_;                   // indexed by rank
  std::vector<int> place_;                // indexed by rank: position in its domain
  std::vector<std::vector<Rank>> ranks_;  // indexed by domain
};

/// Collective. Finds the domains that the algorithm uses, from whether the ranks map each other's memory of `window`.
/// Fails with kUnsupported if the algorithm is kDirect and some ranks do not share memory.
Result<Domains> find_domains(Communicator& communicator, const Window& window, const ExpertGroupConfig& config);

}  // namespace accord::expert
