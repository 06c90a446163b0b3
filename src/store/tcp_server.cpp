// One thread sleeps in epoll_wait() over non-blocking sockets: the listening one, an eventfd that ends the thread,
// and one per client. Its timeout is the earliest deadline of all parked gets and of all connections that have not
// yet said hello. tcp_session.cpp interprets the clients' bytes.
#include "store/tcp_server.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "base/blocked_signals.hpp"
#include "base/log.hpp"
#include "store/tcp_socket.hpp"

namespace accord::store {
namespace {

constexpr std::uint64_t kListeningId = 0;
constexpr std::uint64_t kStopId = 1;
constexpr std::uint64_t kFirstClientId = 2;
constexpr auto kHelloTimeout = std::chrono::seconds(10);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

Result<std::unique_ptr<TcpServer>> TcpServer::start(UniqueFd listening) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return errno_status(errno, "epoll_create1");
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return errno_status(errno, "eventfd");
  std::unique_ptr<TcpServer> server(new TcpServer(std::move(listening), std::move(epoll), std::move(stop)));
  ACCORD_RETURN_IF_ERROR(server->watch(EPOLL_CTL_ADD, server->listening_.get(), EPOLLIN, kListeningId));
  ACCORD_RETURN_IF_ERROR(server->watch(EPOLL_CTL_ADD, server->stop_.get(), EPOLLIN, kStopId));
  try {
    const BlockedSignals blocked;
    server->thread_ = std::thread(&TcpServer::serve, server.get());
  } catch (const std::system_error& error) {
    return Status(StatusCode::kResourceExhausted, fmt::format("the store's thread could not start: {}", error.what()));
  }
  return server;
}

TcpServer::TcpServer(UniqueFd listening, UniqueFd epoll, UniqueFd stop)
    : process_(getpid()),
      listening_(std::move(listening)),
      epoll_(std::move(epoll)),
      stop_(std::move(stop)),
      next_id_(kFirstClientId) {}

TcpServer::~TcpServer() {
  if (!thread_.joinable()) return;
  if (getpid() != process_) {
    thread_.detach();  // a forked child has a copy of this object, but not the thread
    return;
  }
  const std::uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);  // cannot fail: the counter is zero
  thread_.join();
}

void TcpServer::serve() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds_to_next_deadline());
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const std::uint64_t id = event.data.u64;  // a copy: the struct is packed and allows no reference
      if (id == kStopId) return;
      if (id == kListeningId) {
        accept_clients();
        continue;
      }
      // Ids are never reused, so an event of a client that was just dropped finds none.
      const auto client = clients_.find(id);
      if (client != clients_.end() && !on_ready(client->second, event.events)) drop(client->second);
    }
    expire();
  }
}

Status TcpServer::watch(int operation, int fd, std::uint32_t events, std::uint64_t id) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) return errno_status(errno, "epoll_ctl");
  return Status();
}

// --- connections ---

void TcpServer::accept_clients() {
  for (;;) {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      admit(std::move(fd));
      continue;
    }
    const Status failure = errno_status(errno, "accept");
    if (failure.code() == StatusCode::kResourceExhausted) {
      log().warn("the store cannot take another client for now: {}", failure.message());
      pause_accepting();
    }
    return;  // none is left, or one ended before it was accepted; epoll reports the next
  }
}

void TcpServer::admit(UniqueFd fd) {
  keep_alive(fd.get());
  const ClientId id = next_id_++;
  if (!watch(EPOLL_CTL_ADD, fd.get(), EPOLLIN, id).ok()) return;
  Client& client = clients_[id];
  client.id = id;
  client.fd = std::move(fd);
  set_deadline(client, Clock::now() + kHelloTimeout);
}

// When the process is out of descriptors, the listening socket would report itself ready without end.
void TcpServer::pause_accepting() {
  (void)watch(EPOLL_CTL_MOD, listening_.get(), 0, kListeningId);
  resume_accepting_at_ = Clock::now() + kAcceptPause;
}

void TcpServer::resume_accepting() {
  (void)watch(EPOLL_CTL_MOD, listening_.get(), EPOLLIN, kListeningId);
  resume_accepting_at_ = Clock::time_point::max();
}

void TcpServer::drop(Client& client) {
  unpark(client);
  set_deadline(client, Clock::time_point::max());
  clients_.erase(client.id);  // closes the socket, which removes it from epoll
}

// --- deadlines ---

void TcpServer::set_deadline(Client& client, Clock::time_point deadline) {
  if (client.deadline != Clock::time_point::max()) deadlines_.erase({client.deadline, client.id});
  client.deadline = deadline;
  if (deadline != Clock::time_point::max()) deadlines_.insert({deadline, client.id});
}

int TcpServer::milliseconds_to_next_deadline() const {
  auto next = resume_accepting_at_;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (next == Clock::time_point::max()) return -1;
  return Deadline::in(std::chrono::duration_cast<Duration>(next - Clock::now())).poll_milliseconds();
}

void TcpServer::expire() {
  const auto now = Clock::now();
  if (resume_accepting_at_ <= now) resume_accepting();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Client& client = clients_.at(deadlines_.begin()->second);
    const bool parked = !client.waiting_for.empty();
    unpark(client);
    set_deadline(client, Clock::time_point::max());
    if (!parked || !answer(client, {.code = StatusCode::kTimeout}, nullptr)) drop(client);
  }
}

}  // namespace accord::store
