// How the server handles the bytes of one client. A client sends one request and reads its answer before it sends the
// next, so each connection holds at most one incoming and one outgoing message. A client that sends more, or sends
// anything that is not a request, is dropped; other clients are not affected. A get() of an absent key is parked
// until a set() of that key answers all its waiters. An answer shares its value with the table, so that a thousand
// clients waiting for one large value do not cause a thousand copies.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "base/log.hpp"
#include "store/tcp_server.hpp"

namespace accord::store {

bool TcpServer::on_ready(Client& client, std::uint32_t events) {
  if (client.answering() && (events & EPOLLOUT) != 0 && !send_answer(client)) return false;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return true;
  return receive(client) && parse_requests(client);
}

bool TcpServer::receive(Client& client) {
  std::array<char, 65536> chunk;
  while (client.received.size() <= kMaxRequestBytes) {
    const ssize_t got = recv(client.fd.get(), chunk.data(), chunk.size(), 0);
    if (got > 0) client.received.append(chunk.data(), static_cast<std::size_t>(got));
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  return false;
}

bool TcpServer::parse_requests(Client& client) {
  if (client.received.empty()) return true;
  if (client.answering() || !client.waiting_for.empty()) return false;
  if (!client.greeted) return greet(client);

  const std::string_view received = client.received;
  if (received.size() < kRequestHeaderBytes) return true;
  const Result<RequestHeader> header = decode_request(received.substr(0, kRequestHeaderBytes));
  if (!header.ok()) {
    log().info("the store dropped a client: {}", header.status().message());
    return false;
  }
  const std::size_t whole = kRequestHeaderBytes + header->key_bytes + header->value_bytes;
  if (received.size() < whole) return true;
  if (received.size() > whole) return false;
  std::string key(received.substr(kRequestHeaderBytes, header->key_bytes));
  std::string value(received.substr(kRequestHeaderBytes + header->key_bytes));
  client.received = std::string();  // frees the memory of a large value
  return execute(client, *header, std::move(key), std::move(value));
}

bool TcpServer::greet(Client& client) {
  if (client.received.size() < kHelloBytes) return true;
  const Status hello = check_hello(std::string_view(client.received).substr(0, kHelloBytes), Side::kClient);
  if (hello.code() == StatusCode::kCorrupt) {
    log().info("the store dropped a connection: {}", hello.message());
    return false;
  }
  // A client with another version receives our hello before the connection ends, so that it can report the mismatch.
  client.received.erase(0, kHelloBytes);
  client.greeted = true;
  set_deadline(client, Clock::time_point::max());
  const auto reply = encode_hello(Side::kHost);
  client.head.assign(reply.data(), reply.size());
  return send_answer(client) && hello.ok() && parse_requests(client);
}

bool TcpServer::execute(Client& client, const RequestHeader& header, std::string key, std::string value) {
  const auto entry = values_.find(key);
  switch (header.operation) {
    case Operation::kSet:
      put(key, std::make_shared<const std::string>(std::move(value)));
      return answer(client, {}, nullptr);
    case Operation::kGet:
      if (entry != values_.end()) return answer(client, {}, entry->second);
      if (header.number <= 0) return answer(client, {.code = StatusCode::kTimeout}, nullptr);
      park(client, std::move(key), Duration(header.number));
      return true;
    case Operation::kAdd: {
      const auto sum = add_to(key, entry == values_.end() ? nullptr : entry->second.get(), header.number);
      if (!sum.ok()) {
        return answer(client, {.code = sum.status().code()},
                      std::make_shared<const std::string>(sum.status().message()));
      }
      put(key, std::make_shared<const std::string>(std::to_string(*sum)));
      return answer(client, {.number = *sum}, nullptr);
    }
    case Operation::kErase:
      if (entry != values_.end()) values_.erase(entry);
      return answer(client, {}, nullptr);
  }
  return false;
}

// --- answers ---

bool TcpServer::answer(Client& client, ReplyHeader header, Value text) {
  header.text_bytes = text == nullptr ? 0 : static_cast<std::uint32_t>(text->size());
  const auto bytes = encode(header);
  client.head.assign(bytes.data(), bytes.size());
  client.body = std::move(text);
  return send_answer(client);
}

bool TcpServer::send_answer(Client& client) {
  const std::string_view parts[] = {client.head, client.body == nullptr ? std::string_view() : *client.body};
  const std::size_t whole = parts[0].size() + parts[1].size();
  while (client.sent < whole) {
    const bool in_head = client.sent < parts[0].size();
    const std::string_view rest =
        in_head ? parts[0].substr(client.sent) : parts[1].substr(client.sent - parts[0].size());
    const int more = in_head && !parts[1].empty() ? MSG_MORE : 0;
    const ssize_t sent = send(client.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL | more);
    if (sent > 0) client.sent += static_cast<std::size_t>(sent);
    if (sent >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    return watch_for_room(client, true);
  }
  client.head.clear();
  client.body = nullptr;
  client.sent = 0;
  return watch_for_room(client, false);
}

bool TcpServer::watch_for_room(Client& client, bool wanted) {
  if (client.watched_for_room == wanted) return true;
  client.watched_for_room = wanted;
  const std::uint32_t events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  return watch(EPOLL_CTL_MOD, client.fd.get(), events, client.id).ok();
}

// --- the table ---

void TcpServer::put(const std::string& key, Value value) {
  values_.insert_or_assign(key, value);
  const auto waiting = waiting_.extract(key);
  if (waiting.empty()) return;
  for (const ClientId id : waiting.mapped()) {
    Client& client = clients_.at(id);
    client.waiting_for.clear();
    set_deadline(client, Clock::time_point::max());
    if (!answer(client, {}, value)) drop(client);
  }
}

void TcpServer::park(Client& client, std::string key, Duration timeout) {
  waiting_[key].insert(client.id);
  client.waiting_for = std::move(key);
  set_deadline(client, Deadline::in(timeout).at());
}

void TcpServer::unpark(Client& client) {
  const auto waiting = client.waiting_for.empty() ? waiting_.end() : waiting_.find(client.waiting_for);
  client.waiting_for.clear();
  if (waiting == waiting_.end()) return;
  waiting->second.erase(client.id);
  if (waiting->second.empty()) waiting_.erase(waiting);
}

}  // namespace accord::store
