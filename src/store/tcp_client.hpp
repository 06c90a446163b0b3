#pragma once
// A client's connections to the host of the TCP store.

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

/// Connections to one host. Each call has a connection to itself, so that waiting threads do not block each other.
///
/// Thread-safe. After a fork, the child opens its own connections.
class TcpClient {
 public:
  /// Tries all addresses of `host` repeatedly until one answers. kTimeout names the host and gives the last failure.
  static Result<std::unique_ptr<TcpClient>> connect(const std::string& host, int port, Duration timeout);
  /// Connects to a host in this process.
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
  /// Sends a request and waits for its answer; a failure in the answer becomes the result's Status. Fails with
  /// kPeerLost if the host is gone.
  Result<Reply> call(const Request& request, Deadline deadline);

  const std::string& url() const { return url_; }

 private:
  TcpClient(Address address, std::string url);
  Result<UniqueFd> acquire_connection(Deadline deadline);
  void release_connection(UniqueFd connection);
  static Status send(int fd, const Request& request, Deadline deadline, const std::string& what);

  const Address address_;
  const std::string url_;
  std::mutex mutex_;
  std::vector<UniqueFd> idle_;
  pid_t process_;
};

}  // namespace accord::store
