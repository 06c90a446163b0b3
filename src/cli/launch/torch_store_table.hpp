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

/// The keys, counters and queues of one store, and which client waits for which key. Pure: bytes in, bytes out; no
/// I/O, no time. The caller numbers the clients and never uses a number twice.
class TorchStoreTable {
 public:
  using Client = std::uint64_t;

  /// Takes more bytes of `client`. Returns false if they do not follow torch's protocol; the caller then drops the
  /// client.
  bool receive(Client client, std::string_view bytes);
  void drop(Client client);
  /// Returns the answers to send, by client. A request of one client may answer others that waited.
  std::map<Client, std::string> pop_answers();

 private:
  struct State {
    std::string received;     ///< not yet parsed
    bool valid = false;       ///< it has sent VALIDATE
    std::size_t awaited = 0;  ///< keys it still waits for; it is answered when the last one exists
  };
  class Request;
  enum class Outcome : std::uint8_t { kDone, kIncomplete, kWrong };

  Outcome execute(Client client, State& state, Request& request);
  Outcome wait(Client client, State& state, Request& request);
  Outcome barrier(Client client, State& state, Request& request);
  Outcome add(Client client, Request& request);
  Outcome compare_set(Client client, Request& request);
  Outcome multi_get(Client client, Request& request);
  Outcome multi_set(Request& request);
  Outcome pop(Client client, Request& request);

  bool contains(const std::string& key) const;
  const std::string& value(const std::string& key) const;
  void put(const std::string& key, std::string value);
  void wake(const std::string& key, std::size_t most);
  void stop_waiting(Client client);
  void list_keys(Client client);

  std::map<Client, State> clients_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::map<std::string, std::deque<Client>> waiting_;  ///< by key, in the order of arrival
  std::map<Client, std::string> answers_;
};

}  // namespace accord::cli
