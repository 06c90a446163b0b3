#pragma once
// The two directions of one link: this rank's writes into the peer's window, and the peer's writes into this rank's
// window.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.hpp"
#include "transport/ucx/worker.hpp"

namespace accord::transport::ucx {

/// A stream of writes, gathered into messages that are sent when they are full or flush() is called. Writes take
/// effect in order. Thread-safe. Shared by a Link, which writes, and its Endpoint, which owns the window.
class Stream final : public Receiver {
 public:
  /// Receives into `window` until close().
  Stream(Worker& worker, std::span<std::byte> window);
  ~Stream() override;

  /// The id by which the peer addresses this side.
  std::uint64_t id() const { return id_; }
  /// Sets the destination. Call once, before anything is written.
  Status open(const std::string& worker_address, std::uint64_t peer_id);
  /// Stops writes into the window.
  void close();

  /// kPeerLost once the connection to the peer has failed. Earlier writes may then never arrive.
  Status state() const;
  /// Writes everything, however much is in flight.
  void write(std::span<const std::byte> source, std::size_t offset);
  /// Writes bytes, then a word. flush() does not count them.
  void write_note(std::span<const std::byte> source, std::size_t offset, std::uint64_t word, std::size_t word_offset);
  /// Writes as much as there is room for and returns the number of bytes.
  std::size_t write_some(std::span<const std::byte> source, std::size_t offset);
  void write_word(std::uint64_t word, std::size_t offset);
  /// REQUIRES: fits into one message.
  void write_packets(std::span<const std::byte> source, std::size_t offset, const PacketLines& lines,
                     std::uint64_t word);
  void flush();
  void flush_notes();
  bool has_room() const;
  /// begin_read() requests bytes of the peer's window; read_ended() is true once all have arrived, and fails with
  /// kPeerLost if they cannot arrive any more.
  std::uint64_t begin_read(std::size_t offset, std::span<std::byte> destination);
  Result<bool> read_ended(std::uint64_t number);
  void abandon_read(std::uint64_t number);
  /// request_acknowledgement() requests an acknowledgement that the peer has received everything; is_acknowledged() is
  /// true once it has arrived.
  void request_acknowledgement();
  bool is_acknowledged() const;

  Worker& worker() const { return worker_; }
  void receive(std::uint64_t sequence, std::span<const std::byte> message) override;

 private:
  /// The header of each write in a message.
  struct Entry {
    std::uint64_t kind = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  ///< of data
    std::uint64_t word = 0;   ///< to store; or the number of a read
    PacketLines lines = {};
  };
  // For all of these, REQUIRES: the worker's mutex is held.
  Status state_locked() const;
  std::byte* room_for(std::size_t bytes);
  std::byte* add(const Entry& entry, std::size_t room);
  void add_bytes(std::span<const std::byte> source, std::size_t offset, std::uint64_t kind);
  void send();
  void apply(const Entry& entry, std::span<const std::byte> data);
  void apply_packets(const Entry& entry, std::span<const std::byte> data);
  void answer(const Entry& request);
  bool fits(std::size_t offset, std::size_t bytes) const;

  struct Read {
    std::span<std::byte> destination;
    std::size_t arrived = 0;
  };

  Worker& worker_;
  const std::span<std::byte> window_;
  const std::uint64_t id_;
  bool open_ = false;
  bool closed_ = false;
  bool damaged_ = false;  ///< received data were malformed
  std::uint64_t peer_id_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  bool is_acknowledged_ = false;
  std::shared_ptr<Route> route_;
  std::unique_ptr<Message> filling_;
  bool urgent_ = false;  ///< it contains more than notes
  std::shared_ptr<std::size_t> in_flight_;
  std::map<std::uint64_t, Read> reads_;
  std::uint64_t next_read_ = 1;
  std::vector<Entry> early_requests_;  ///< requests that arrived before open()
};

}  // namespace accord::transport::ucx
