#pragma once
// Bytes between two ranks: the seam behind which fabrics differ.
//
// A Transport is a fabric (inproc, shm, ucx), one object per process. It opens an Endpoint for each
// communicator: this rank's window, memory of equal size on every rank that peers can reach. Endpoints exchange
// opaque descriptors (the caller carries them through a store) and connect into Links, one for each peer. Offsets
// are bytes from the start of a window.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"

namespace accord::transport {

enum class PeerState : std::uint8_t {
  kAlive,
  kLeft,  ///< closed its endpoint in good order
  kLost,  ///< died, or became unreachable, without doing so
};

/// How data and words alternate in a window: `count` lines, each with up to `data_bytes` of data at its start and the word at
/// `word_at`.
struct PacketLines {
  std::uint32_t data_bytes = 0;
  std::uint32_t word_at = 0;
  std::uint32_t stride = 0;
  std::uint32_t count = 0;
};

/// What those need who may not wait in a Link whose window is not mapped: writes that never wait, gathered into messages, and reads that
/// are asked for. Writes take effect in the order in which they were made. Thread-safe. Bounds are the caller's to keep.
class RemoteWriter {
 public:
  virtual ~RemoteWriter() = default;
  /// Writes as much of `source` as there is room for, and gives how much that is: 0 while too much is on its way.
  virtual std::size_t write_some(std::span<const std::byte> source, std::size_t offset) = 0;
  /// Writes `source`, which is short, then `word`; flush() does not count it: it goes with what goes next, or by flush_notes().
  virtual void write_note(std::span<const std::byte> source, std::size_t offset, std::uint64_t word,
                          std::size_t word_offset) = 0;
  /// Stores `word` after all earlier writes.
  virtual void write_word(std::uint64_t word, std::size_t offset) = 0;
  /// At most 32 KiB of data, each line's word after its data.
  virtual void write_packets(std::span<const std::byte> source, std::size_t offset, const PacketLines& lines,
                             std::uint64_t word) = 0;
  /// Sends what was gathered, unless it is notes only: without it, writes may wait for more of them for ever.
  virtual void flush() = 0;
  virtual void flush_notes() = 0;
  /// False while so much is on its way that whoever can wait should: put() and signal() take all they are given.
  virtual bool has_room() const = 0;
  /// Asks for bytes of the peer's window. `destination` has to live until read_ended() gives true or an error, or abandon_read().
  virtual std::uint64_t begin_read(std::size_t offset, std::span<std::byte> destination) = 0;
  /// kPeerLost if they cannot come any more.
  virtual Result<bool> read_ended(std::uint64_t number) = 0;
  virtual void abandon_read(std::uint64_t number) = 0;
  /// Lets what comes in and goes out move on; for whoever waits.
  virtual void progress() = 0;
};

/// One rank's way to one peer's window. Thread-compatible; peer_state() may be called from any thread.
class Link {
 public:
  virtual ~Link() = default;

  Rank peer() const { return peer_; }
  /// The peer's window in this address space, or nullptr if it can be reached by put, get and signal only. Stays valid
  /// while the Link lives, also after the peer's death.
  virtual std::byte* mapped() const = 0;
  /// Null if the window is mapped.
  virtual RemoteWriter* remote() { return nullptr; }
  /// Copies `source` to `offset` of the peer's window; visible to the peer no later than the next signal().
  virtual Status put(std::span<const std::byte> source, std::size_t offset) = 0;
  /// Copies from `offset` of the peer's window.
  virtual Status get(std::size_t offset, std::span<std::byte> destination) = 0;
  /// Stores `word` at `offset` (a multiple of 8) after all earlier puts are visible.
  virtual Status signal(std::size_t offset, std::uint64_t word) = 0;
  /// What is known of the peer; the last news, at the cost of a load.
  virtual PeerState peer_state() const = 0;
  /// A descriptor that becomes readable when the peer may be lost (the caller then calls update_peer_state()) and stays so once it
  /// is: links of several endpoints may share one, and each of them has to hear of it. That a peer left shows in peer_state() by
  /// itself. -1 if the transport has none and peer_state() is always up to date.
  virtual int liveness_fd() const = 0;
  /// Reads what liveness_fd() has to say; gives the new state.
  virtual PeerState update_peer_state() = 0;

 protected:
  explicit Link(Rank peer) : peer_(peer) {}

 private:
  Rank peer_;
};

/// A peer to connect to: its rank and what its Endpoint's descriptor() gave.
struct PeerDescriptor {
  Rank rank = 0;
  std::string descriptor;
};

/// This rank's side of one communicator over one transport. Destroying it leaves in good order: peers see kLeft.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// This rank's window, zeroed, aligned to a page. Pages cost memory only once touched.
  virtual std::span<std::byte> window() const = 0;
  /// What peers need to connect; text of at most 1 KiB.
  virtual std::string descriptor() const = 0;
  /// Connects to `peers`, who connect to this one at the same time; several calls may connect to some peers each. Links
  /// come in the order of `peers`. kTimeout and kPeerLost name the ranks; kMismatch if window sizes differ. After a
  /// failure the endpoint can only be destroyed.
  virtual Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const PeerDescriptor> peers,
                                                             Deadline deadline) = 0;
};

struct EndpointRequest {
  Rank rank = 0;
  int size = 1;
  std::size_t window_bytes = 0;
  /// For a second endpoint over the window of a first one, of that size, which outlives it; only where peers do not map it.
  std::byte* window = nullptr;
  /// How many of the others it will connect to, if not all: then it keeps nothing that more of them would need.
  std::optional<int> peers = std::nullopt;

  std::size_t peer_count() const { return static_cast<std::size_t>(peers.value_or(size - 1)); }
};

/// What reaches() looks at.
struct PlaceView {
  std::string_view host;
  int process = 0;
  std::string_view process_space = {};  ///< where that number counts (topology::Place)
};

/// A fabric. Thread-safe, lives as long as the process.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  /// Ok if it can be used on this machine, else why not.
  virtual Status viable() const = 0;
  /// True if ranks at these two places could connect over it. Pure, and equal on both sides.
  virtual bool reaches(const PlaceView& mine, const PlaceView& peer) const = 0;
  /// Whether peers' windows are mapped: then Link::mapped() is never null, else always.
  virtual bool maps() const { return true; }
  virtual Result<std::unique_ptr<Endpoint>> open(const EndpointRequest& request) = 0;
};

/// All transports of this build, the preferred one first.
std::span<Transport* const> transports();
/// By name; kNotFound names the nearest one.
Result<Transport*> transport_by_name(std::string_view name);

}  // namespace accord::transport
