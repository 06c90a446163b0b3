#pragma once
// Many groups of ranks of one group, connected in one step and created one by one, each when it is needed.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "comm/group_options.hpp"

namespace accord::comm {

class Group;

/// A group's place in the window that all of them share, equal on all of its ranks.
struct SharedPlace {
  std::size_t offset = 0;
  std::vector<Rank> ranks;  ///< ascending, among the connected ranks
};

/// A set of connected ranks. Thread-safe.
class SharedGroups {
 public:
  /// A collective of `parent`: connects its ranks [first, first + size). The other ranks only learn whether that
  /// succeeded, and get null. `terms` must be equal on all ranks, else kMismatch shows what differs. `refused`: why
  /// this rank cannot take part, or ok; if it is not ok, all ranks fail.
  struct Request {
    Rank first = 0;
    int size = 0;
    std::size_t window_bytes = 0;
    std::string terms;
    Status refused;
    GroupOptions options;  ///< of the groups, except for their names
  };
  static Result<std::shared_ptr<SharedGroups>> connect(Group& parent, const Request& request);
  /// Takes part in connect() for a rank that has no request, so that it fails on all ranks with `why`.
  static Status decline(Group& parent, const GroupOptions& options, std::string_view why);

  /// Bytes of the window that a group uses.
  static std::size_t bytes(int ranks, std::size_t slot_bytes);
  /// Creates this rank's part of a group, without the other ranks. Once for each place. A group of one rank has a
  /// window of its own. It ends with the parent if this rank aborts that.
  Result<std::shared_ptr<Group>> make(const SharedPlace& place, const GroupOptions& options) const;
  /// Instead of make(): notifies the group's other ranks that this one has left it.
  void leave(const SharedPlace& place) const;
  ~SharedGroups();
  SharedGroups(const SharedGroups&) = delete;
  SharedGroups& operator=(const SharedGroups&) = delete;

 private:
  struct Connection;
  explicit SharedGroups(std::unique_ptr<const Connection> connection);

  const std::unique_ptr<const Connection> connection_;
};

}  // namespace accord::comm
