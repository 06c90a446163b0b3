#pragma once
// The host's side of the TCP store: one thread that serves all clients.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "store/tcp_protocol.hpp"

namespace accord::store {

/// Serves the store from its own thread until destroyed; then all connections end.
class TcpServer {
 public:
  static Result<std::unique_ptr<TcpServer>> start(UniqueFd listening);
  ~TcpServer();
  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;

 private:
  using ClientId = std::uint64_t;
  using Value = std::shared_ptr<const std::string>;

  /// One connection. It is greeting until its hello arrives; then it is idle, waiting for a key, or being answered.
  struct Client {
    ClientId id = 0;
    UniqueFd fd;
    bool greeted = false;
    std::string received;                                   ///< not yet parsed
    std::string waiting_for;                                ///< key of a parked get; empty if none is parked
    Clock::time_point deadline = Clock::time_point::max();  ///< for the hello or the parked get
    std::string head;                                       ///< first part of the answer
    Value body;                                             ///< second part of the answer, shared with the table
    std::size_t sent = 0;                                   ///< bytes of head and body already sent
    bool watched_for_room = false;                          ///< epoll reports when more of the answer can be sent

    bool answering() const { return !head.empty(); }
  };

  TcpServer(UniqueFd listening, UniqueFd epoll, UniqueFd stop);
  void serve();
  Status watch(int operation, int fd, std::uint32_t events, std::uint64_t id);
  void accept_clients();
  void admit(UniqueFd fd);
  void pause_accepting();
  void resume_accepting();
  void drop(Client& client);
  void expire();
  int milliseconds_to_next_deadline() const;
  void set_deadline(Client& client, Clock::time_point deadline);

  // Each returns false if the client must be dropped.
  bool on_ready(Client& client, std::uint32_t events);
  bool receive(Client& client);
  bool parse_requests(Client& client);
  bool greet(Client& client);
  bool execute(Client& client, const RequestHeader& header, std::string key, std::string value);
  bool answer(Client& client, ReplyHeader header, Value text);
  bool send_answer(Client& client);
  bool watch_for_room(Client& client, bool wanted);

  void put(const std::string& key, Value value);
  void park(Client& client, std::string key, Duration timeout);
  void unpark(Client& client);

  const pid_t process_;
  UniqueFd listening_;
  UniqueFd epoll_;
  UniqueFd stop_;  ///< an eventfd; readable when the thread should end
  Clock::time_point resume_accepting_at_ = Clock::time_point::max();
  ClientId next_id_;
  std::map<ClientId, Client> clients_;
  std::map<std::string, Value> values_;
  std::map<std::string, std::set<ClientId>> waiting_;  ///< by key
  std::set<std::pair<Clock::time_point, ClientId>> deadlines_;
  std::thread thread_;
};

}  // namespace accord::store
