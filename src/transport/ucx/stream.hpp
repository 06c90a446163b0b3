#pragma once
// One link's two directions: what this rank writes into the peer's window, and what the peer writes into this one's.

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

/// A stream of writes, gathered into messages that go when they are full or flush() is called; they take effect in order.
/// Thread-safe. Shared by a Link, which writes, and its Endpoint, which owns the window.
class Stream final : public Receiver {
 public:
  /// Receives from now on, into `window`, until close().
  Stream(Worker& worker, std::span<std::byte> window);
  ~Stream() override;

  /// By which the peer addresses this side.
  std::uint64_t id() const { return id_; }
  /// Whom it writes to. Once, before anything is written.
  Status open(const std::string& worker_address, std::uint64_t peer_id);
  /// Nothing is written into the window any more.
  void close();

  /// kPeerLost once the way to the peer has failed. What is written earlier may not arrive then.
  Status state() const;
  /// All of it, however much is on its way.
  void write(std::span<const std::byte> source, std::size_t offset);
  /// Bytes, then a word, that flush() does not count.
  void write_note(std::span<const std::byte> source, std::size_t offset, std::uint64_t word, std::size_t word_offset);
  /// Takes what there is room for; gives how many bytes.
  std::size_t write_some(std::span<const std::byte> source, std::size_t offset);
  void write_word(std::uint64_t word, std::size_t offset);
  /// REQUIRES: fits into one message.
  void write_packets(std::span<const std::byte> source, std::size_t offset, const PacketLines& lines,
                     std::uint64_t word);
  void flush();
  void flush_notes();
  bool has_room() const;
  /// Asks for the peer's window, and whether all of it has come: kPeerLost once it cannot any more.
  std::uint64_t begin_read(std::size_t offset, std::span<std::byte> destination);
  Result<bool> read_ended(std::uint64_t number);
  void abandon_read(std::uint64_t number);
  /// Asks the peer to say that it has seen everything, and whether it has.
  void ask_for_all_seen();
  bool all_seen() const;

  Worker& worker() const { return worker_; }
  void receive(std::uint64_t sequence, std::span<const std::byte> message) override;

 private:
  /// What stands before each write in a message.
  struct Entry {
    std::uint64_t kind = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  ///< of data
    std::uint64_t word = 0;   ///< to store; or the number of a read
    PacketLines lines = {};
  };
  // REQUIRES, for all of these: the worker's mutex is held.
  Status state_locked() const;
  std::byte* room_for(std::size_t bytes);
  std::byte* add(const Entry& entry, std::size_t room);
  void add_bytes(std::span<const std::byte> source, std::size_t offset, std::uint64_t kind);
  void send();
  void take(const Entry& entry, std::span<const std::byte> data);
  void take_packets(const Entry& entry, std::span<const std::byte> data);
  void answer(const Entry& question);
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
  bool damaged_ = false;  ///< what came made no sense
  std::uint64_t peer_id_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  bool all_seen_ = false;
  std::shared_ptr<Route> route_;
  std::unique_ptr<Message> filling_;
  bool urgent_ = false;  ///< it has more than notes
  std::shared_ptr<std::size_t> in_flight_;
  std::map<std::uint64_t, Read> reads_;
  std::uint64_t next_read_ = 1;
  std::vector<Entry> questions_;  ///< that came before open()
};

}  // namespace accord::transport::ucx
