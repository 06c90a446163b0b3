#pragma once
// Memory of the CPU through which the ranks of a group exchange rows.

#include <cstddef>
#include <span>
#include <vector>

#include "accord/window.hpp"
#include "exec/placement.hpp"
#include "expert/group_setup.hpp"
#include "expert/host/domains.hpp"

namespace accord::expert {

/// The domains of a group, its staging memory, and the windows with the caller's buffers.
class SharedRows {
 public:
  /// Collective. `staging_bytes`: staging memory of this rank.
  static Result<SharedRows> create(const GroupSetup& setup, std::size_t staging_bytes);

  const Domains& domains() const { return domains_; }
  /// The ranks elsewhere whose rows enter through `rank`, and the highest number of them of any rank.
  std::span<const Rank> guests(Rank rank) const { return guests_of_[static_cast<std::size_t>(rank)]; }
  std::size_t max_guests() const { return max_guests_; }

  /// A rank's part of the staging memory. Each part has two halves, used in alternate rounds.
  std::span<std::byte> staging(Rank rank, std::int64_t round) const;

  /// Fails with kInvalidArgument or kUnsupported if the group's ranks cannot use the window.
  Status check(const Window& window) const;
  void add(const Window& window) { windows_.push_back(window); }
  /// Place of a buffer in a window; exec::kNoPlace if it is in none.
  exec::PlaceWord place_of(const ConstBuffer& buffer) const;
  /// Address on this rank of a place of `rank`.
  std::byte* address(exec::PlaceWord place, Rank rank) const;

 private:
  SharedRows(const GroupSetup& setup, Window staging, Domains domains);

  Rank rank_;
  int size_;
  Window staging_;
  Domains domains_;
  std::vector<std::vector<Rank>> guests_of_;  // indexed by rank
  std::size_t max_guests_ = 0;
  std::vector<Window> windows_;
};

}  // namespace accord::expert
