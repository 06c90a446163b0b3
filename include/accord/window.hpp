#pragma once
// Memory that the ranks of a group lend each other.

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

/// A piece of this rank's memory in a window, given back when the last handle to it goes. It keeps the window's memory alive.
class WindowBlock {
 public:
  explicit WindowBlock(std::shared_ptr<comm::WindowBlockState> state);

  std::span<std::byte> bytes() const;
  /// Where peers find it: bytes from the start of this rank's memory.
  std::size_t offset() const;
  /// `count` elements from its start. REQUIRES: they fit.
  Buffer buffer(std::size_t count, DType dtype) const { return {bytes().data(), count, dtype, {}}; }

 private:
  std::shared_ptr<comm::WindowBlockState> state_;
};

/// Registered memory: every rank contributes some, and every rank reaches that of all others, by address where the transport maps
/// it, by put and get everywhere. Made by Communicator::window(). Zeroed; pages cost memory once they are touched.
///
/// Collectives on buffers that lie in windows copy nothing on the way (docs/windows.md).
///
/// A handle: copies refer to the same window. It keeps its communicator's group open, may outlive the communicator, and may be
/// destroyed by each rank when it likes, in any order; memory of a peer that has let go of it stays readable here.
/// Thread-safe; who reads and writes the same bytes at the same time is the caller's to order, by signal and wait or a barrier.
class Window {
 public:
  explicit Window(std::shared_ptr<comm::SharedWindow> window);
  const std::shared_ptr<comm::SharedWindow>& state() const { return window_; }

  Rank rank() const;
  int size() const;
  /// Counted from 0 in the order in which the group's windows were made; equal on all ranks.
  int number() const;
  /// What `rank` contributed. REQUIRES: a rank of the group.
  std::size_t bytes(Rank rank) const;
  /// This rank's memory, aligned to a page.
  std::span<std::byte> local() const;
  /// The memory of `rank` in this address space; empty if it contributed none or the transport does not map it. Stays valid as
  /// long as the window, also after the peer's death. REQUIRES: a rank of the group.
  std::span<std::byte> peer(Rank rank) const;

  /// Copies `source` to `offset` bytes from the start of rank `to`'s memory; there for who waits for a later signal of this rank.
  /// kInvalidArgument names the bounds; a failed or closed group gives its failure. Cost: one copy. Between hosts it waits while too
  /// much is on its way there, at most for timeout(): kTimeout names `to`, a part may have been put, and the group goes on.
  [[nodiscard]] Status put(ConstBuffer source, Rank to, std::size_t offset);
  /// Copies from `offset` bytes from the start of rank `from`'s memory. The same, and between hosts one way there and back.
  [[nodiscard]] Status get(Buffer destination, Rank from, std::size_t offset);
  /// Counts one signal to `to`: what this rank put there before is visible to who waits for it. Waits between hosts only, as put() does.
  [[nodiscard]] Status signal(Rank to);
  /// Waits for one signal of `from` that no wait has taken yet, and takes it. Signals are counted for each ordered pair of ranks; one that has arrived
  /// counts, whatever happened since. kTimeout names `from` and harms nothing: it may be waited for again. A group that fails, and
  /// a rank that has let go of the window, end it with an error.
  [[nodiscard]] Status wait(Rank from, const CallOptions& options = {});
  /// How long put() and get() take at most, and a wait that is not told: the communicator's timeout.
  Duration timeout() const;

  /// A piece of this rank's memory that nobody else has, at a multiple of `alignment` (a power of two, at most a page). Pieces never share a
  /// cache line. kResourceExhausted tells what is free. Who allocates keeps his hands off the rest of local(). Not collective.
  [[nodiscard]] Result<WindowBlock> allocate(std::size_t bytes, std::size_t alignment = 64);

 private:
  std::shared_ptr<comm::SharedWindow> window_;
};

}  // namespace accord
