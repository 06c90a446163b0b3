#pragma once
// A client's connections to the TCP store's host.

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "accord/store.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "store/tcp_protocol.hpp"
#include "store/tcp_socket.hpp"

namespace accord::store {

/// Connections to one host: each call takes one for itself, so threads that wait do not stand in each other's way.
///
/// Thread-safe. After a fork the child makes connections of its own.
class TcpClient {
 public:
  /// Tries all addresses of `host` over and over until one answers; kTimeout names it and tells what went wrong last.
  static Result<std::unique_ptr<TcpClient>> connect(const std::string& host, int port, Duration timeout);
  /// To a host in this process.
  static Result<std::unique_ptr<TcpClient>> connect_here(const Address& address, std::string url, Duration timeout);

  struct Request {
    Operation operation;
    std::string_view key;
    std::string_view value = {};
    std::int64_t number = 0;
  };
  struct Reply {
    std::string text;
    std::int64_t number = 0;
  };
  /// Sends a request and waits for its answer, or gives the failure that the host answered. kPeerLost if the host is
  /// gone.
  Result<Reply> call(const Request& request, Deadline deadline);

  const std::string& url() const { return url_; }

 private:
  TcpClient(Address address, std::string url);
  Result<UniqueFd> take_connection(Deadline deadline);
  void give_back(UniqueFd connection);
  static Status send(int fd, const Request& request, Deadline deadline, const std::string& what);

  const Address address_;
  const std::string url_;
  std::mutex mutex_;
  std::vector<UniqueFd> idle_;
  pid_t process_;
};

}  // namespace accord::store
