#pragma once
// Parts of one endpoint as separate endpoints: many groups share one window and one set of links.

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "transport/transport.hpp"

namespace accord::transport {

/// A connected endpoint and its links, for several users at once.
class SharedEndpoint {
 public:
  struct SharedLink {
    std::unique_ptr<Link> link;
    std::mutex mutex;  ///< for the calls of the link that are only thread-compatible
  };

  SharedEndpoint(std::unique_ptr<Endpoint> endpoint, std::vector<std::unique_ptr<Link>> links);

  std::span<std::byte> window() const { return endpoint_->window(); }
  /// REQUIRES: it is connected to that peer.
  SharedLink& link(Rank peer) const { return *links_.at(peer); }
  /// The process that connected it. A forked child sends nothing to the peers.
  pid_t owner() const { return owner_; }

 private:
  const pid_t owner_;
  std::unique_ptr<Endpoint> endpoint_;
  std::map<Rank, std::unique_ptr<SharedLink>> links_;
};

/// A part of the windows of some ranks, at one offset in all of them: words by which each rank reports that it
/// leaves, then the window.
struct ViewRequest {
  std::vector<Rank> ranks;  ///< ranks of the shared endpoint, indexed by rank in the view
  Rank rank = 0;            ///< this rank in the view
  std::size_t offset = 0;   ///< a multiple of the page size
  std::size_t window_bytes = 0;
};
/// Bytes of the shared window that a view uses.
std::size_t view_bytes(std::size_t ranks, std::size_t window_bytes);

/// This rank's part of a view. Peers see kLeft once it is destroyed, and also when the shared endpoint is.
struct View {
  std::unique_ptr<Endpoint> endpoint;
  std::vector<std::unique_ptr<Link>> links;  ///< indexed by rank in the view; null for this rank
};
/// Creates a view without the peers' help: they may create theirs earlier, later or never. At most one view for each
/// part of a window.
View make_view(std::shared_ptr<SharedEndpoint> shared, const ViewRequest& request);
/// Makes the peers of a view that this rank never creates see kLeft. Uses the ranks, this rank and the offset of
/// `request`.
void leave_view(SharedEndpoint& shared, const ViewRequest& request);

}  // namespace accord::transport
