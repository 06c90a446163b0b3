#pragma once
// The answers of a torch.distributed TCPStore to the bytes of its clients.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accord::cli {

/// The keys, counters and queues of one store, and who waits for what. Pure: bytes in, bytes out; no I/O, no time.
/// Clients have numbers that the caller gives and never uses twice.
class TorchStoreTable {
 public:
  using Client = std::uint64_t;

  /// More bytes of `client`. False if they are not torch's protocol: the caller then drops the client.
  bool receive(Client client, std::string_view bytes);
  void drop(Client client);
  /// Answers that are to be sent, by client; one client's request may answer others that waited.
  std::map<Client, std::string> take_answers();

 private:
  struct State {
    std::string received;     ///< not yet understood
    bool valid = false;       ///< it has said that it speaks this protocol
    std::size_t awaited = 0;  ///< keys that it still waits for; it is answered when the last one comes
  };
  class Request;
  enum class Outcome : std::uint8_t { kDone, kIncomplete, kWrong };

  Outcome carry_out(Client client, State& state, Request& request);
  Outcome wait(Client client, State& state, Request& request);
  Outcome barrier(Client client, State& state, Request& request);
  Outcome add(Client client, Request& request);
  Outcome compare_set(Client client, Request& request);
  Outcome multi_get(Client client, Request& request);
  Outcome multi_set(Request& request);
  Outcome pop(Client client, Request& request);

  bool is_there(const std::string& key) const;
  const std::string& value(const std::string& key) const;
  void put(const std::string& key, std::string value);
  void wake(const std::string& key, std::size_t most);
  void stop_waiting(Client client);
  void list_keys(Client client);

  std::map<Client, State> clients_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::map<std::string, std::deque<Client>> waiting_;  ///< by key, first come first
  std::map<Client, std::string> answers_;
};

}  // namespace accord::cli
