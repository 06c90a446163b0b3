// A call takes an idle connection, or opens one, sends its request, waits for the answer and returns the connection.
// After any failure the connection is closed, since an answer may still be under way on it. The first connection is
// retried, because rank 0 may start later than the others. After that, a refused connection means that the host is
// gone.
#include "store/tcp_client.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/log.hpp"
#include "base/text.hpp"

namespace accord::store {
namespace {

constexpr auto kAttemptTimeout = std::chrono::seconds(5);
constexpr auto kWarnAfter = std::chrono::seconds(10);
constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
constexpr std::size_t kMaxIdle = 8;

template <typename Bytes>
std::span<const std::byte> as_bytes(const Bytes& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::kSet: return "set";
    case Operation::kGet: return "get";
    case Operation::kAdd: return "add";
    case Operation::kErase: return "erase";
  }
  return "request";
}

Result<UniqueFd> open_connection(const Address& address, Deadline deadline, const std::string& what) {
  ACCORD_ASSIGN_OR_RETURN(UniqueFd fd, connect_to(address, deadline, what));
  ACCORD_RETURN_IF_ERROR(write_all(fd.get(), as_bytes(encode_hello(Side::kClient)), deadline, what));
  std::array<char, kHelloBytes> hello = {};
  ACCORD_RETURN_IF_ERROR(read_all(fd.get(), std::as_writable_bytes(std::span(hello)), deadline, what));
  const Status status = check_hello(std::string_view(hello.data(), hello.size()), Side::kHost);
  if (!status.ok()) return status.with_context(what);
  return fd;
}

// Retrying is pointless: another program answers, the host has no address, or this process cannot open more
// descriptors.
bool is_final(const Status& failure) {
  return failure.code() == StatusCode::kMismatch || failure.code() == StatusCode::kNotFound ||
         failure.code() == StatusCode::kResourceExhausted;
}

// The first of `host`'s addresses at which the store answers, with the connection.
struct Found {
  Address address;
  UniqueFd connection;
};
Result<Found> try_all_addresses(const std::string& host, int port, Deadline deadline, const std::string& what) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Address> addresses, resolve(host, port));
  Status failure(StatusCode::kNotFound, what + ": no address");
  for (const Address& address : addresses) {
    const Deadline attempt = Deadline::in(std::min<Duration>(deadline.remaining(), kAttemptTimeout));
    Result<UniqueFd> connection = open_connection(address, attempt, what);
    if (connection.ok()) return Found{address, std::move(*connection)};
    failure = connection.status();
    if (is_final(failure)) return failure;
  }
  return failure;
}

}  // namespace

TcpClient::TcpClient(Address address, std::string url) : address_(address), url_(std::move(url)), process_(getpid()) {}

Result<std::unique_ptr<TcpClient>> TcpClient::connect(const std::string& host, int port, Duration timeout) {
  const std::string url = tcp_url(host, port);
  const Deadline deadline = Deadline::in(timeout);
  const Deadline warning = Deadline::in(kWarnAfter);
  bool warned = false;
  Status failure;
  for (Duration pause = kFirstPause;; pause = std::min(pause * 3 / 2, kLongestPause)) {
    Result<Found> found = try_all_addresses(host, port, deadline, "store " + url);
    if (found.ok()) {
      std::unique_ptr<TcpClient> client(new TcpClient(found->address, url));
      client->release_connection(std::move(found->connection));
      return client;
    }
    if (is_final(found.status())) return found.status();
    // An attempt that the deadline cut short says less than the one before it.
    if (failure.ok() || found.status().code() != StatusCode::kTimeout) failure = found.status();
    if (deadline.passed()) {
      return Status(
          StatusCode::kTimeout,
          fmt::format("store {}: no connection within {}; the last error: {}; check that rank 0 runs and that all "
                      "ranks were given its address and port",
                      url, duration_text(timeout), failure.message()));
    }
    if (!warned && warning.passed()) {
      log().warn("still waiting for rank 0: {}", failure.message());
      warned = true;
    }
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
  }
}

Result<std::unique_ptr<TcpClient>> TcpClient::connect_here(const Address& address, std::string url, Duration timeout) {
  std::unique_ptr<TcpClient> client(new TcpClient(address, std::move(url)));
  ACCORD_ASSIGN_OR_RETURN(UniqueFd connection, client->acquire_connection(Deadline::in(timeout)));
  client->release_connection(std::move(connection));
  return client;
}

Result<TcpClient::Reply> TcpClient::call(const Request& request, Deadline deadline) {
  const std::string what = fmt::format("store {}: {} {}", url_, name_of(request.operation), quoted_text(request.key));
  ACCORD_ASSIGN_OR_RETURN(UniqueFd connection, acquire_connection(deadline));
  std::array<char, kReplyHeaderBytes> header_bytes = {};
  ACCORD_RETURN_IF_ERROR(send(connection.get(), request, deadline, what));
  ACCORD_RETURN_IF_ERROR(read_all(connection.get(), std::as_writable_bytes(std::span(header_bytes)), deadline, what));
  const Result<ReplyHeader> header = decode_reply(std::string_view(header_bytes.data(), header_bytes.size()));
  if (!header.ok()) return header.status().with_context(what);
  Reply reply{.text = std::string(header->text_bytes, '\0'), .number = header->number};
  ACCORD_RETURN_IF_ERROR(read_all(connection.get(), std::as_writable_bytes(std::span(reply.text)), deadline, what));
  release_connection(std::move(connection));
  if (header->code != StatusCode::kOk) return Status(header->code, std::move(reply.text));
  return reply;
}

Status TcpClient::send(int fd, const Request& request, Deadline deadline, const std::string& what) {
  const auto header = encode(RequestHeader{.operation = request.operation,
                                           .key_bytes = static_cast<std::uint32_t>(request.key.size()),
                                           .value_bytes = static_cast<std::uint32_t>(request.value.size()),
                                           .number = request.number});
  std::string message(header.data(), header.size());
  message.append(request.key).append(request.value);
  return write_all(fd, as_bytes(message), deadline, what);
}

Result<UniqueFd> TcpClient::acquire_connection(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (getpid() != process_) {
      idle_.clear();  // inherited from the parent by a fork
      process_ = getpid();
    }
    if (!idle_.empty()) {
      UniqueFd connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  Result<UniqueFd> connection = open_connection(address_, deadline, "store " + url_);
  if (connection.ok() || connection.status().code() != StatusCode::kIo) return connection;
  return Status(StatusCode::kPeerLost, connection.status().message() + "; its host is gone");
}

void TcpClient::release_connection(UniqueFd connection) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
}

}  // namespace accord::store
