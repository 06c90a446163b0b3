// All sockets are non-blocking and in one epoll, whose descriptor the launcher's loop watches, so that its turns do
// not grow with the number of ranks. A client that is slow to read its answers is served again when its socket has
// room.
#include "cli/launch/torch_store.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "store/tcp_socket.hpp"

namespace accord::cli {
namespace {

constexpr std::uint64_t kListening = 0;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

Status watch(int epoll, int operation, int fd, std::uint32_t events, std::uint64_t number) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = number;
  return epoll_ctl(epoll, operation, fd, &event) == 0 ? Status() : errno_status(errno, "epoll_ctl");
}

}  // namespace

Result<std::unique_ptr<TorchStore>> TorchStore::serve(UniqueFd listening) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return errno_status(errno, "epoll_create1");
  ACCORD_RETURN_IF_ERROR(watch(epoll.get(), EPOLL_CTL_ADD, listening.get(), EPOLLIN, kListening));
  return std::unique_ptr<TorchStore>(new TorchStore(std::move(listening), std::move(epoll)));
}

void TorchStore::add_watches(Watches& watches) {
  watches.push_back({epoll_.get(), POLLIN, [this] { turn(); }});
}

void TorchStore::turn() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
    if (number == kListening) {
      accept_clients();
      continue;
    }
    const auto found = connections_.find(number);
    if (found == connections_.end()) continue;
    if (!flush(number, found->second) || !receive(number, found->second)) drop(number);
    answer();
  }
}

void TorchStore::accept_clients() {
  for (;;) {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;  // none is left, or descriptors are used up; the next turn tries again
    store::keep_alive(fd.get());
    const Client client = next_++;
    if (watch(epoll_.get(), EPOLL_CTL_ADD, fd.get(), EPOLLIN, client).ok()) connections_[client].fd = std::move(fd);
  }
}

bool TorchStore::receive(Client client, Connection& connection) {
  std::array<char, 65536> bytes;
  const ssize_t got = recv(connection.fd.get(), bytes.data(), bytes.size(), 0);  // epoll reports more
  if (got > 0) return table_.receive(client, std::string_view(bytes.data(), static_cast<std::size_t>(got)));
  return got < 0 && (would_block() || errno == EINTR);
}

void TorchStore::answer() {
  for (auto& [client, bytes] : table_.pop_answers()) {
    const auto found = connections_.find(client);
    if (found == connections_.end()) continue;
    found->second.unsent += bytes;
    if (!flush(client, found->second)) drop(client);
  }
}

bool TorchStore::flush(Client client, Connection& connection) {
  const bool waited = !connection.unsent.empty();
  while (!connection.unsent.empty()) {
    const ssize_t sent = send(connection.fd.get(), connection.unsent.data(), connection.unsent.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && !would_block()) return false;
    if (sent < 0) return watch(epoll_.get(), EPOLL_CTL_MOD, connection.fd.get(), EPOLLIN | EPOLLOUT, client).ok();
    connection.unsent.erase(0, static_cast<std::size_t>(sent));
  }
  return !waited || watch(epoll_.get(), EPOLL_CTL_MOD, connection.fd.get(), EPOLLIN, client).ok();
}

void TorchStore::drop(Client client) {
  table_.drop(client);
  connections_.erase(client);  // closes the socket, which removes it from epoll
}

}  // namespace accord::cli
