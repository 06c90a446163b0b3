#pragma once
// What a Window refers to.

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

/// A window as one rank has it: one more endpoint over the group's transport, whose memory begins with a line for each rank's
/// signals. Thread-safe.
class SharedWindow : public std::enable_shared_from_this<SharedWindow> {
 public:
  /// Collective over the group: all ranks get it, or none does. `group`: a handle.
  static Result<std::shared_ptr<SharedWindow>> open(std::shared_ptr<Group> group, std::size_t bytes, Duration timeout);
  ~SharedWindow();

  const Group& group() const { return *group_; }
  int number() const { return number_; }
  std::size_t bytes(Rank rank) const { return bytes_[static_cast<std::size_t>(rank)]; }
  /// Empty where it is not mapped.
  std::span<std::byte> memory(Rank rank) const;

  Status put(ConstBuffer source, Rank to, std::size_t offset);
  Status get(Buffer destination, Rank from, std::size_t offset);
  Status signal(Rank to);
  Status wait(Rank from, Duration timeout);

  memory::BlockAllocator& allocator() { return allocator_; }
  /// `window allocate on group "tp" (ranks 0-3)`.
  std::string where(std::string_view operation) const;

 private:
  SharedWindow(std::shared_ptr<Group> group, int number, std::vector<std::uint64_t> bytes,
               std::unique_ptr<transport::Endpoint> endpoint, Links links);
  /// For calls on buffers in it.
  void register_memory();

  Status check_transfer(std::string_view operation, Rank peer, std::size_t offset, const ConstBuffer& buffer) const;
  Status check_rank(std::string_view operation, Rank peer) const;
  Status check_usable(std::string_view operation) const;
  /// REQUIRES: links_mutex_ is held.
  transport::PeerState peer_state(Rank rank) const;
  /// Takes a signal if one is there.
  bool take_signal(Rank from);
  /// Until `ended` gives true or fails, at most for the communicator's timeout: the parts of puts and gets between hosts that wait for
  /// `peer`. `operation`: "put to".
  template <typename Ended>
  Status wait_for(std::string_view operation, Rank peer, const Ended& ended);
  Status wait_for_room(std::string_view operation, Rank to);
  Status put_between_hosts(std::span<const std::byte> source, Rank to, std::size_t offset);
  Status get_between_hosts(std::span<std::byte> destination, Rank from, std::size_t offset);
  /// kAborted if this thread is to leave its `operation` with `peer`: nothing is out of step then.
  Status check_interruption(std::string_view operation, Rank peer) const;
  /// Why `operation` with `peer`, which waits for something of it, need not go on; `news` is what did not come in time.
  Status why_stop(std::string_view operation, Rank peer, std::string_view news, Deadline deadline);

  std::shared_ptr<Group> group_;
  int number_;
  std::vector<std::uint64_t> bytes_;  ///< by rank
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::shared_ptr<const Links> links_;  ///< by rank; null for this one
  memory::BlockAllocator allocator_;

  std::mutex links_mutex_;           ///< a link serves one thread at a time, but for memory that is mapped
  std::vector<std::uint64_t> sent_;  ///< signals to each rank; under links_mutex_
  std::vector<std::atomic<std::uint64_t>> taken_;  ///< signals of each rank that waits took
};

/// What a WindowBlock refers to.
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
