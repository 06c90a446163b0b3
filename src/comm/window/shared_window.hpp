#pragma once
// The state that a Window refers to.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/call.hpp"
#include "accord/status.hpp"
#include "base/clock.hpp"
#include "comm/window/window_table.hpp"
#include "memory/block_allocator.hpp"
#include "transport/transport.hpp"

namespace accord::comm {

class Group;

/// One rank's side of a window: another endpoint over the group's transport, whose memory begins with a line for each
/// rank's signals. Thread-safe.
class SharedWindow : public std::enable_shared_from_this<SharedWindow> {
 public:
  /// A collective of the group: all ranks get the window, or none does. `group`: a handle.
  static Result<std::shared_ptr<SharedWindow>> open(std::shared_ptr<Group> group, std::size_t bytes, Duration timeout);
  ~SharedWindow();

  const Group& group() const { return *group_; }
  int number() const { return number_; }
  std::size_t bytes(Rank rank) const { return bytes_[static_cast<std::size_t>(rank)]; }
  /// Empty if it is not mapped.
  std::span<std::byte> memory(Rank rank) const;

  Status put(ConstBuffer source, Rank to, std::size_t offset);
  Status get(Buffer destination, Rank from, std::size_t offset);
  Status signal(Rank to);
  Status wait(Rank from, Duration timeout);

  memory::BlockAllocator& allocator() { return allocator_; }
  /// For example `window allocate on group "tp" (ranks 0-3)`.
  std::string where(std::string_view operation) const;

 private:
  SharedWindow(std::shared_ptr<Group> group, int number, std::vector<std::uint64_t> bytes,
               std::unique_ptr<transport::Endpoint> endpoint, Links links);
  /// Registers the memory for calls on buffers in it.
  void register_memory();

  Status check_transfer(std::string_view operation, Rank peer, std::size_t offset, const ConstBuffer& buffer) const;
  Status check_rank(std::string_view operation, Rank peer) const;
  Status check_usable(std::string_view operation) const;
  /// REQUIRES: links_mutex_ is held.
  transport::PeerState peer_state(Rank rank) const;
  /// Takes a signal if one has arrived; returns whether it did.
  bool consume_signal(Rank from);
  /// Waits until `ended` returns true or fails, for at most the communicator's timeout. For the parts of puts and
  /// gets between hosts that wait for `peer`. `operation`: "put to".
  template <typename Ended>
  Status wait_for(std::string_view operation, Rank peer, const Ended& ended);
  Status wait_for_room(std::string_view operation, Rank to);
  Status put_between_hosts(std::span<const std::byte> source, Rank to, std::size_t offset);
  Status get_between_hosts(std::span<std::byte> destination, Rank from, std::size_t offset);
  /// Fails with kAborted if this thread has to leave its `operation` with `peer`; both ranks stay in step.
  Status check_interruption(std::string_view operation, Rank peer) const;
  /// Returns why `operation`, which waits for `peer`, cannot continue, or ok. `what`: the timeout's text, for example
  /// "no signal arrived".
  Status why_stop(std::string_view operation, Rank peer, std::string_view what, Deadline deadline);

  std::shared_ptr<Group> group_;
  int number_;
  std::vector<std::uint64_t> bytes_;  ///< by rank
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::shared_ptr<const Links> links_;  ///< by rank; null for this one
  memory::BlockAllocator allocator_;

  std::mutex links_mutex_;                            ///< a link serves one thread at a time, except for mapped memory
  std::vector<std::uint64_t> sent_;                   ///< signals to each rank; under links_mutex_
  std::vector<std::atomic<std::uint64_t>> consumed_;  ///< signals of each rank that waits took
};

/// The state that a WindowBlock refers to.
struct WindowBlockState {
  WindowBlockState(std::shared_ptr<SharedWindow> window_, std::size_t offset_, std::size_t bytes_)
      : window(std::move(window_)), offset(offset_), bytes(bytes_) {}
  ~WindowBlockState() { window->allocator().release(offset); }
  WindowBlockState(const WindowBlockState&) = delete;
  WindowBlockState& operator=(const WindowBlockState&) = delete;

  std::shared_ptr<SharedWindow> window;
  std::size_t offset;
  std::size_t bytes;
};

}  // namespace accord::comm
