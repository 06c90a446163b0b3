#pragma once
// Memory that the ranks of a group share.

#include <cstddef>
#include <memory>
#include <span>

#include "accord/buffer.hpp"
#include "accord/call_options.hpp"
#include "accord/status.hpp"

namespace accord {

namespace comm {
class SharedWindow;
struct WindowBlockState;
}  // namespace comm

/// An allocated piece of this rank's memory in a window, which is freed with its last handle. It keeps the window's
/// memory alive.
class WindowBlock {
 public:
  explicit WindowBlock(std::shared_ptr<comm::WindowBlockState> state);

  std::span<std::byte> bytes() const;
  /// Offset for peers: bytes from the start of this rank's memory.
  std::size_t offset() const;
  /// `count` elements from its start. REQUIRES: they fit.
  Buffer buffer(std::size_t count, DType dtype) const { return {bytes().data(), count, dtype, {}}; }

 private:
  std::shared_ptr<comm::WindowBlockState> state_;
};

/// Registered memory: every rank contributes some, and every rank reaches the memory of all others, by address where
/// the transport maps it, by put and get everywhere. Created by Communicator::window(). Zeroed; pages use memory only
/// once they are touched.
///
/// Collectives on buffers in windows need no intermediate copy (docs/windows.md).
///
/// A handle: copies refer to the same window. It keeps its communicator's group open, may outlive the communicator,
/// and may be destroyed by each rank at any time, in any order; the memory of a peer that has released its handle
/// stays readable here. Thread-safe, but the caller must order conflicting accesses to the same bytes, by signal and
/// wait or by a barrier.
class Window {
 public:
  explicit Window(std::shared_ptr<comm::SharedWindow> window);
  const std::shared_ptr<comm::SharedWindow>& state() const { return window_; }

  Rank rank() const;
  int size() const;
  /// Counted from 0 in the order in which the group's windows were created; equal on all ranks.
  int number() const;
  /// Bytes that `rank` contributed. REQUIRES: a rank of the group.
  std::size_t bytes(Rank rank) const;
  /// This rank's memory, aligned to a page.
  std::span<std::byte> local() const;
  /// The memory of `rank` in this address space; empty if it contributed none or the transport does not map it. Valid
  /// as long as the window, even after the peer's death. REQUIRES: a rank of the group.
  std::span<std::byte> peer(Rank rank) const;

  /// Copies `source` to `offset` bytes from the start of rank `to`'s memory. The data is visible to a rank that waits
  /// for a later signal from this rank. kInvalidArgument names the bounds; a failed or closed group returns its
  /// failure. Cost: one copy. Between hosts it waits while too much data is in flight to that rank, at most for
  /// timeout(): kTimeout names `to`, a part of the data may have been put, and the group stays usable.
  [[nodiscard]] Status put(ConstBuffer source, Rank to, std::size_t offset);
  /// Copies from `offset` bytes from the start of rank `from`'s memory. Errors are those of put(). Between hosts it
  /// costs one round trip.
  [[nodiscard]] Status get(Buffer destination, Rank from, std::size_t offset);
  /// Sends one signal to rank `to`; what this rank put there before is visible to a rank that waits for it. It waits
  /// only between hosts, as put() does.
  [[nodiscard]] Status signal(Rank to);
  /// Waits for one signal from rank `from` that no wait has consumed yet, and consumes it. Signals are counted for
  /// each ordered pair of ranks; a signal that has arrived counts, whatever happens afterwards. kTimeout names `from`
  /// and has no other effect: you may wait again. Fails if the group fails, or if `from` has released the window.
  [[nodiscard]] Status wait(Rank from, const CallOptions& options = {});
  /// The limit for put() and get(), and for a wait without a timeout of its own: the communicator's timeout.
  Duration timeout() const;

  /// Allocates a piece of this rank's memory, aligned to `alignment` (a power of two, at most a page). Pieces never
  /// share a cache line. kResourceExhausted says how much is free. A program that allocates pieces must not use the
  /// rest of local(). Not collective.
  [[nodiscard]] Result<WindowBlock> allocate(std::size_t bytes, std::size_t alignment = 64);

 private:
  std::shared_ptr<comm::SharedWindow> window_;
};

}  // namespace accord
