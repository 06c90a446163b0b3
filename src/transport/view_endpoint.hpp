#pragma once
// Parts of one endpoint as endpoints of their own: many groups over one window and one set of links.

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "transport/transport.hpp"

namespace accord::transport {

/// A connected endpoint, and its links, for several users at once.
class SharedEndpoint {
 public:
  struct SharedLink {
    std::unique_ptr<Link> link;
    std::mutex mutex;  ///< for what is thread-compatible of it
  };

  SharedEndpoint(std::unique_ptr<Endpoint> endpoint, std::vector<std::unique_ptr<Link>> links);

  std::span<std::byte> window() const { return endpoint_->window(); }
  /// REQUIRES: it is connected to that peer.
  SharedLink& link(Rank peer) const { return *links_.at(peer); }
  /// The process that connected it: one that it forked says nothing to the peers.
  pid_t owner() const { return owner_; }

 private:
  const pid_t owner_;
  std::unique_ptr<Endpoint> endpoint_;
  std::map<Rank, std::unique_ptr<SharedLink>> links_;
};

/// A part of the windows of some ranks, at one offset in all of them: words in which each says that it leaves, then the window.
struct ViewRequest {
  std::vector<Rank> ranks;  ///< of the shared endpoint, by their rank in the view
  Rank rank = 0;            ///< of this one in the view
  std::size_t offset = 0;   ///< a multiple of the page size
  std::size_t window_bytes = 0;
};
/// What a view takes of the shared window.
std::size_t view_bytes(std::size_t ranks, std::size_t window_bytes);

/// This rank's part of a view. Peers see kLeft once it is destroyed, and when the shared endpoint is.
struct View {
  std::unique_ptr<Endpoint> endpoint;
  std::vector<std::unique_ptr<Link>> links;  ///< by rank in the view; null for this one
};
/// Needs no peer's help: peers may make theirs earlier, later or never. One for each part of a window.
View make_view(std::shared_ptr<SharedEndpoint> shared, const ViewRequest& request);
/// Peers of a view that this rank never makes see kLeft. Of `request` it takes the ranks, this one and the offset.
void leave_view(SharedEndpoint& shared, const ViewRequest& request);

}  // namespace accord::transport
