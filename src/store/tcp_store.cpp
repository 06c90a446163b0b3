// The host runs a server thread and a client of it, like every other rank; a client is connections only. The server
// does the waiting: get() sends how long it will wait, and the server answers when the key is set or the time is
// over. The client waits a little longer than that, in case the host is alive but does not answer.
#include <fmt/format.h>

#include <algorithm>

#include "store/entry.hpp"
#include "store/tcp_client.hpp"
#include "store/tcp_server.hpp"

namespace accord {
namespace {

using store::Operation;
using store::TcpClient;
using store::TcpServer;

constexpr Duration kAnswerTimeout = std::chrono::seconds(5);

class TcpStore final : public Store {
 public:
  TcpStore(std::unique_ptr<TcpServer> server, std::unique_ptr<TcpClient> client, Duration answers)
      : server_(std::move(server)), client_(std::move(client)), timeout_(std::max(answers, kAnswerTimeout)) {}

  Status set(std::string_view key, std::string_view value) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    ACCORD_RETURN_IF_ERROR(store::check_value(key, value));
    return client_->call({Operation::kSet, key, value}, Deadline::in(timeout_)).status();
  }

  Result<std::string> get(std::string_view key, Duration timeout) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    const Duration wait = std::max(timeout, Duration::zero());
    const Duration limit = wait > Duration::max() - kAnswerTimeout ? Duration::max() : wait + kAnswerTimeout;
    Result<TcpClient::Reply> reply =
        client_->call({.operation = Operation::kGet, .key = key, .number = wait.count()}, Deadline::in(limit));
    if (reply.ok()) return std::move(reply->text);
    // The host answers a timeout with its code only.
    const bool waited = reply.status().code() == StatusCode::kTimeout && reply.status().message().empty();
    return waited ? store::not_set(describe(), key, timeout) : reply.status();
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    ACCORD_ASSIGN_OR_RETURN(
        const TcpClient::Reply reply,
        client_->call({.operation = Operation::kAdd, .key = key, .number = delta}, Deadline::in(timeout_)));
    return reply.number;
  }

  Status erase(std::string_view key) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    return client_->call({.operation = Operation::kErase, .key = key}, Deadline::in(timeout_)).status();
  }

  std::string describe() const override { return client_->url(); }

 private:
  const std::unique_ptr<TcpServer> server_;  // null in a client
  const std::unique_ptr<TcpClient> client_;
  const Duration timeout_;
};

Result<std::shared_ptr<Store>> make_host(const std::string& host, int port, Duration timeout, Duration answers) {
  ACCORD_ASSIGN_OR_RETURN(UniqueFd listening, store::listen_at(host, port));
  ACCORD_ASSIGN_OR_RETURN(const int served_port, store::port_of(listening.get()));
  ACCORD_ASSIGN_OR_RETURN(const store::Address address, store::local_address_of(listening.get()));
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<TcpServer> server, TcpServer::start(std::move(listening)));
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<TcpClient> client,
                          TcpClient::connect_here(address, store::tcp_url(host, served_port), timeout));
  return std::shared_ptr<Store>(std::make_shared<TcpStore>(std::move(server), std::move(client), answers));
}

}  // namespace

Result<std::shared_ptr<Store>> make_tcp_store(StoreRole role, const std::string& host, int port, Duration timeout,
                                              std::optional<Duration> answer_timeout) {
  const int lowest = role == StoreRole::kHost ? 0 : 1;
  if (port < lowest || port > 65535) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("store {}: port {} is not in {}-65535", store::tcp_url(host, port), port, lowest));
  }
  if (host.empty()) return Status(StatusCode::kInvalidArgument, "a TCP store needs the name or address of its host");
  const Duration answers = answer_timeout.value_or(timeout);
  if (role == StoreRole::kHost) return make_host(host, port, timeout, answers);
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<TcpClient> client, TcpClient::connect(host, port, timeout));
  return std::shared_ptr<Store>(std::make_shared<TcpStore>(nullptr, std::move(client), answers));
}

}  // namespace accord
