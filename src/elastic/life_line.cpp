// A connection counts once it was answered: at an address that belongs to several machines from the point of view of
// others (container bridges), another process may listen.
#include "elastic/life_line.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/blocked_signals.hpp"
#include "store/tcp_socket.hpp"

namespace accord::elastic {
namespace {

/// Pause after an error that ends when other descriptors are closed.
constexpr int kNoDescriptorsPauseMs = 100;
/// Callers that have not said hello; the oldest one is dropped for another.
constexpr std::ptrdiff_t kMaxStrangers = 64;

/// Nothing is sent after the hello and its answer, so whatever arrives ends the connection.
bool has_ended(int socket) {
  char byte = 0;
  const ssize_t got = ::recv(socket, &byte, 1, MSG_DONTWAIT);
  return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

Result<std::unique_ptr<LifeLine>> LifeLine::open() {
  ACCORD_ASSIGN_OR_RETURN(comm::HandleListener listener, comm::HandleListener::open());
  std::unique_ptr<LifeLine> line(new LifeLine(std::move(listener)));
  line->stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!line->stop_.valid()) return errno_status(errno, "cannot create an event descriptor");
  const BlockedSignals blocked;
  line->thread_ = std::thread([raw = line.get()] { raw->answer(); });
  return line;
}

LifeLine::~LifeLine() {
  if (!thread_.joinable()) return;
  if (::getpid() != listener_.handle.process) {  // a forked child does not have the thread
    thread_.detach();
    return;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

bool LifeLine::keep(transport::tcp::IncomingCall& call) const {
  if (call.has_hello()) return !has_ended(call.fd());
  if (!call.advance()) return false;
  if (!call.has_hello()) return true;
  if (call.hello() != listener_.handle.key) return false;
  store::keep_alive(call.fd());
  call.acknowledge();
  return true;
}

void LifeLine::answer() {
  while (true) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.socket.get(), POLLIN, 0}};
    for (const transport::tcp::IncomingCall& call : calls_) polled.push_back({call.fd(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;  // EINTR
    if (polled[0].revents != 0) return;
    std::erase_if(calls_, [this](transport::tcp::IncomingCall& call) { return !keep(call); });
    const auto is_stranger = [](const transport::tcp::IncomingCall& call) { return !call.has_hello(); };
    while (std::count_if(calls_.begin(), calls_.end(), is_stranger) > kMaxStrangers)
      calls_.erase(std::find_if(calls_.begin(), calls_.end(), is_stranger));
    while (true) {
      Result<UniqueFd> socket = transport::tcp::accept_call(listener_.socket.get());
      if (!socket.ok()) {
        ::poll(polled.data(), 1, kNoDescriptorsPauseMs);
        break;
      }
      if (!socket->valid()) break;
      calls_.emplace_back(*std::move(socket));
    }
  }
}

LifeWatch::LifeWatch(const comm::Handle& address) : call_(address.addresses, address.port, address.key) {}

Life LifeWatch::look() {
  if (is_gone_) return Life::kGone;
  if (!answered_.valid()) {
    if (!call_.advance().ok()) return Life::kUnknown;  // without descriptors it is not known
    if (call_.is_acknowledged()) {
      answered_ = call_.release_socket();
      store::keep_alive(answered_.get());
    }
    is_gone_ = call_.refused();
  }
  if (answered_.valid()) is_gone_ = has_ended(answered_.get());
  if (is_gone_) {
    answered_.reset();
    return Life::kGone;
  }
  return answered_.valid() ? Life::kAlive : Life::kUnknown;
}

}  // namespace accord::elastic
