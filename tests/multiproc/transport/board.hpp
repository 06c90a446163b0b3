#pragma once
// The meeting place of forked ranks: shared memory with a descriptor and a step counter for each rank.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/transport.hpp"

namespace accord::transport {

inline constexpr std::size_t kWindowBytes = 65536;  ///< per rank, where the size does not matter

/// Long enough for the slowest machine under a sanitizer; a test waits this long only if it fails.
inline Deadline patience() { return Deadline::in(std::chrono::seconds(150)); }

/// Waits until `condition()` holds; returns false at the deadline. Polls less and less often, as many ranks may wait
/// on few cores.
template <typename Condition>
bool wait_until(const Condition& condition, Deadline deadline = patience()) {
  auto nap = std::chrono::microseconds(50);
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, std::chrono::microseconds(10000));
  }
  return true;
}

/// Created before fork(), shared by all ranks.
struct Board {
  static constexpr std::size_t kMaxRanks = 64;

  std::array<std::array<char, 1025>, kMaxRanks> descriptors = {};
  /// 0: nothing yet; 1: the descriptor is available; then as the test defines
  std::array<std::atomic<int>, kMaxRanks> step = {};
  std::array<std::atomic<std::uint64_t>, kMaxRanks> value = {};

  void publish(Rank rank, const std::string& descriptor) {
    std::strncpy(descriptors[at(rank)].data(), descriptor.c_str(), 1024);
    step[at(rank)] = 1;
  }
  void reach(Rank rank, int reached) { step[at(rank)] = reached; }
  bool await(Rank rank, int wanted) const {
    return wait_until([&] { return step[at(rank)] >= wanted; });
  }
  std::string descriptor(Rank rank) const { return descriptors[at(rank)].data(); }

  static std::size_t at(Rank rank) { return static_cast<std::size_t>(rank); }
};

struct UnmapBoard {
  void operator()(Board* board) const { ::munmap(board, sizeof(Board)); }
};
using SharedBoard = std::unique_ptr<Board, UnmapBoard>;

inline SharedBoard make_board() {
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return SharedBoard(new (memory) Board());
}

inline Transport& shm() { return **transport_by_name("shm"); }

/// One rank of a group of processes.
struct Member {
  std::unique_ptr<Endpoint> endpoint;
  std::vector<std::unique_ptr<Link>> links;  ///< indexed by the peer's rank; null for the own rank

  Link& to(Rank peer) const { return *links[static_cast<std::size_t>(peer)]; }
};

inline Status open_member(Member& member, Board& board, Rank rank, int size, std::size_t window_bytes,
                          Transport& transport = shm()) {
  ACCORD_ASSIGN_OR_RETURN(member.endpoint, transport.open({.rank = rank, .size = size, .window_bytes = window_bytes}));
  board.publish(rank, member.endpoint->descriptor());
  return {};
}

inline Status connect_member(Member& member, const Board& board, Rank rank, int size) {
  std::vector<PeerDescriptor> peers;
  for (Rank peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    if (!board.await(peer, 1)) return Status(StatusCode::kTimeout, "the test's rank gave no descriptor", {peer});
    peers.push_back({peer, board.descriptor(peer)});
  }
  ACCORD_ASSIGN_OR_RETURN(auto links, member.endpoint->connect(peers, patience()));
  member.links.resize(static_cast<std::size_t>(size));
  for (auto& link : links) {
    const auto peer = static_cast<std::size_t>(link->peer());
    member.links[peer] = std::move(link);
  }
  return {};
}

inline Status join_group(Member& member, Board& board, Rank rank, int size, std::size_t window_bytes,
                         Transport& transport = shm()) {
  ACCORD_RETURN_IF_ERROR(open_member(member, board, rank, size, window_bytes, transport));
  return connect_member(member, board, rank, size);
}

/// Returns the change of the peer's state that `link` reports within `timeout`. Queries it only when the descriptor
/// is readable.
inline PeerState await_change(Link& link, Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  pollfd entry = {link.liveness_fd(), POLLIN, 0};
  while (link.peer_state() == PeerState::kAlive && ::poll(&entry, 1, deadline.poll_milliseconds()) == 1) {
    link.update_peer_state();
  }
  return link.peer_state();
}

/// Returns the exit code of a forked rank's body, where a gtest failure is printed and becomes the code 1.
inline int outcome() { return ::testing::Test::HasFailure() ? 1 : 0; }

}  // namespace accord::transport
