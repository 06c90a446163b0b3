#pragma once
// Transfer of bytes between two ranks: the interface that hides the differences between fabrics.
//
// A Transport is a fabric (inproc, shm, ucx), one object per process. It opens an Endpoint for each communicator:
// this rank's window, memory of equal size on every rank that peers can reach. Endpoints exchange opaque descriptors
// (the caller passes them through a store) and connect into Links, one for each peer. Offsets are bytes from the
// start of a window.

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
  kLost,  ///< died, or became unreachable, without closing it
};

/// How data and words alternate in a window: `count` lines, each with up to `data_bytes` of data at its start and the
/// word at `word_at`.
struct PacketLines {
  std::uint32_t data_bytes = 0;
  std::uint32_t word_at = 0;
  std::uint32_t stride = 0;
  std::uint32_t count = 0;
};

/// Non-blocking interface to a window that is not mapped, for callers that must not block in a Link: writes that
/// never wait, gathered into messages, and asynchronous reads. Writes take effect in the order in which they were
/// made. Thread-safe. Does not check bounds: offsets must be inside the window.
class RemoteWriter {
 public:
  virtual ~RemoteWriter() = default;
  /// Writes as much of `source` as there is room for and returns that number of bytes: 0 while too much is in flight.
  virtual std::size_t write_some(std::span<const std::byte> source, std::size_t offset) = 0;
  /// Writes `source`, which is short, then `word`. flush() does not count a note: it is sent with the next other
  /// write, or by flush_notes().
  virtual void write_note(std::span<const std::byte> source, std::size_t offset, std::uint64_t word,
                          std::size_t word_offset) = 0;
  /// Stores `word` after all earlier writes.
  virtual void write_word(std::uint64_t word, std::size_t offset) = 0;
  /// Writes at most 32 KiB of data, each line's word after its data.
  virtual void write_packets(std::span<const std::byte> source, std::size_t offset, const PacketLines& lines,
                             std::uint64_t word) = 0;
  /// Sends the gathered writes, unless they are only notes. Without a flush, writes may wait for more of them
  /// forever.
  virtual void flush() = 0;
  virtual void flush_notes() = 0;
  /// False while so much is in flight that a caller which can wait should wait; put() and signal() accept everything.
  virtual bool has_room() const = 0;
  /// Starts a read from the peer's window. `destination` must stay valid until read_ended() returns true or an error,
  /// or until abandon_read().
  virtual std::uint64_t begin_read(std::size_t offset, std::span<std::byte> destination) = 0;
  /// Fails with kPeerLost if the bytes cannot arrive any more.
  virtual Result<bool> read_ended(std::uint64_t number) = 0;
  virtual void abandon_read(std::uint64_t number) = 0;
  /// Advances incoming and outgoing messages. Call it while waiting.
  virtual void progress() = 0;
};

/// One rank's access to one peer's window. Thread-compatible; peer_state() may be called from any thread.
class Link {
 public:
  virtual ~Link() = default;

  Rank peer() const { return peer_; }
  /// The peer's window in this address space, or nullptr if it can only be reached by put, get and signal. Stays
  /// valid while the Link lives, even after the peer's death.
  virtual std::byte* mapped() const = 0;
  /// Null if the window is mapped.
  virtual RemoteWriter* remote() { return nullptr; }
  /// Copies `source` to `offset` of the peer's window; visible to the peer no later than the next signal().
  virtual Status put(std::span<const std::byte> source, std::size_t offset) = 0;
  /// Copies from `offset` of the peer's window.
  virtual Status get(std::size_t offset, std::span<std::byte> destination) = 0;
  /// Stores `word` at `offset` (a multiple of 8) after all earlier puts are visible.
  virtual Status signal(std::size_t offset, std::uint64_t word) = 0;
  /// The last known state of the peer, at the cost of a load.
  virtual PeerState peer_state() const = 0;
  /// A descriptor that becomes readable when the peer may be lost (the caller then calls update_peer_state()) and
  /// stays readable once it is: links of several endpoints may share one, and each must notice. A peer that left
  /// shows in peer_state() without it. -1 if the transport has no such descriptor and peer_state() is always up to
  /// date.
  virtual int liveness_fd() const = 0;
  /// Processes the event behind liveness_fd() and returns the new state.
  virtual PeerState update_peer_state() = 0;

 protected:
  explicit Link(Rank peer) : peer_(peer) {}

 private:
  Rank peer_;
};

/// A peer to connect to: its rank and the result of its Endpoint's descriptor().
struct PeerDescriptor {
  Rank rank = 0;
  std::string descriptor;
};

/// This rank's side of one communicator over one transport. Its destruction is an orderly departure: peers see kLeft.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// This rank's window, zeroed and page-aligned. Pages use memory only once touched.
  virtual std::span<std::byte> window() const = 0;
  /// The address that peers connect to; text of at most 1 KiB.
  virtual std::string descriptor() const = 0;
  /// Connects to `peers`, which connect to this rank at the same time. Several calls may connect to some peers each.
  /// Links are in the order of `peers`. kTimeout and kPeerLost name the ranks; kMismatch if window sizes differ.
  /// After a failure the endpoint can only be destroyed.
  virtual Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const PeerDescriptor> peers,
                                                             Deadline deadline) = 0;
};

struct EndpointRequest {
  Rank rank = 0;
  int size = 1;
  std::size_t window_bytes = 0;
  /// For a second endpoint over the window of a first one, which has that size and outlives it. Only for transports
  /// whose peers do not map windows.
  std::byte* window = nullptr;
  /// Number of peers that it will connect to, if not all: resources for further peers are released after that many.
  std::optional<int> peers = std::nullopt;

  std::size_t peer_count() const { return static_cast<std::size_t>(peers.value_or(size - 1)); }
};

/// Input of reaches().
struct PlaceView {
  std::string_view host;
  int process = 0;
  std::string_view process_space = {};  ///< the namespace in which that number is valid (topology::Place)
};

/// A fabric. Thread-safe, lives as long as the process.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  /// Ok if it can be used on this machine, otherwise the reason why not.
  virtual Status viable() const = 0;
  /// True if ranks at these two places could connect over it. Pure, and equal on both sides.
  virtual bool reaches(const PlaceView& mine, const PlaceView& peer) const = 0;
  /// Whether peers' windows are mapped: Link::mapped() is then never null, otherwise always.
  virtual bool maps() const { return true; }
  virtual Result<std::unique_ptr<Endpoint>> open(const EndpointRequest& request) = 0;
};

/// All transports of this build, the preferred one first.
std::span<Transport* const> transports();
/// Finds a transport by name. kNotFound gives the nearest name.
Result<Transport*> transport_by_name(std::string_view name);

}  // namespace accord::transport
