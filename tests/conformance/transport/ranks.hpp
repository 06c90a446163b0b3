#pragma once
// Groups of ranks that are threads of the test, over any transport.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/transport.hpp"

namespace accord::transport {

/// Long enough for the slowest machine under a sanitizer; a test waits this long only if it fails.
inline Deadline patience() { return Deadline::in(std::chrono::seconds(150)); }

/// Runs body(rank) in one thread per rank and joins them.
template <typename Body>
void in_threads(int size, const Body& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

/// One rank of a test's group.
struct Member {
  std::unique_ptr<Endpoint> endpoint;
  std::vector<std::unique_ptr<Link>> links;  ///< indexed by the peer's rank; null for the own rank

  Link& to(Rank peer) const { return *links[static_cast<std::size_t>(peer)]; }
  std::byte* window() const { return endpoint->window().data(); }
};

using Group = std::vector<Member>;

inline Group open_group(Transport& transport, int size, std::size_t window_bytes) {
  Group group(static_cast<std::size_t>(size));
  for (Rank rank = 0; rank < size; ++rank) {
    auto endpoint = transport.open({.rank = rank, .size = size, .window_bytes = window_bytes});
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    if (endpoint.ok()) group[static_cast<std::size_t>(rank)].endpoint = std::move(endpoint).value();
  }
  return group;
}

inline PeerDescriptor descriptor_of(const Group& group, Rank rank) {
  return {rank, group[static_cast<std::size_t>(rank)].endpoint->descriptor()};
}

/// Returns the descriptors of all ranks except `self`.
inline std::vector<PeerDescriptor> peers_of(const Group& group, Rank self) {
  std::vector<PeerDescriptor> peers;
  for (Rank rank = 0; rank < static_cast<Rank>(group.size()); ++rank) {
    if (rank != self) peers.push_back(descriptor_of(group, rank));
  }
  return peers;
}

/// Connects `self` to all others, which must do the same at the same time.
inline Status connect_member(Group& group, Rank self) {
  Member& member = group[static_cast<std::size_t>(self)];
  auto links = member.endpoint->connect(peers_of(group, self), patience());
  if (!links.ok()) return links.status();
  member.links.resize(group.size());
  for (auto& link : *links) {
    const auto peer = static_cast<std::size_t>(link->peer());
    member.links[peer] = std::move(link);
  }
  return {};
}

inline Group connected_group(Transport& transport, int size, std::size_t window_bytes) {
  Group group = open_group(transport, size, window_bytes);
  std::vector<Status> statuses(group.size());
  in_threads(size, [&](Rank rank) { statuses[static_cast<std::size_t>(rank)] = connect_member(group, rank); });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
  return group;
}

}  // namespace accord::transport
