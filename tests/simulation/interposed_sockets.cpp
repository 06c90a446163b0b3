// TCP between simulated processes, without blocking: what one side sends arrives at the other in order, after the time
// that it takes to travel. Calls take only a part of the bytes now and then. A process that ends closes its sockets.
// Each host has one address.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "simulation/descriptors.hpp"
#include "simulation/scheduler.hpp"
#include "transport/tcp/host_addresses.hpp"

namespace accord::simulation {
namespace {

constexpr Time kShortestWay = 10 * kMicrosecond, kLongestWay = 500 * kMicrosecond;
constexpr std::uint64_t kPartialOneIn = 8;
constexpr int kFirstPort = 20000;

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

Scheduler& scheduler() { return *Scheduler::current(); }

/// One direction of a connection.
struct Flow {
  std::string data;  ///< that has arrived and was not read
  bool ended = false;
  bool is_read = true;  ///< the receiver has it open
  Process* reader = nullptr;
  Time last_arrival = 0;

  /// Runs `arrive` at the receiver after everything that was sent before.
  static void send(const std::shared_ptr<Flow>& flow, std::function<void(Flow&)> arrive) {
    Random& random = scheduler().random();
    flow->last_arrival = std::max(flow->last_arrival, scheduler().now() + random.spread(kShortestWay, kLongestWay));
    scheduler().at(flow->last_arrival, [flow, arrive = std::move(arrive)] {
      arrive(*flow);
      Descriptors::current()->notify(*flow->reader);
    });
  }
};

class SocketFile;
std::map<int, SocketFile*> listeners;  // by port

class SocketFile final : public OpenFile {
 public:
  ~SocketFile() override {
    if (port_ != 0) listeners.erase(port_);
    if (in_ != nullptr) in_->is_read = false;
    shut_down();
    for (const auto& [in, out] : waiting_) Flow::send(out, [](Flow& flow) { flow.ended = true; });
  }

  std::uint32_t events() const override {
    if (port_ != 0) return waiting_.empty() ? 0 : std::uint32_t{EPOLLIN};
    if (error_ != 0) return EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP;
    if (in_ == nullptr) return 0;
    return (in_->data.empty() && !in_->ended ? 0U : std::uint32_t{EPOLLIN}) | std::uint32_t{EPOLLOUT};
  }

  std::int64_t read(void* to, std::size_t bytes) override {
    if (in_ == nullptr) return error_ != 0 ? -error_ : -ENOTCONN;
    if (in_->data.empty()) return in_->ended ? 0 : -EAGAIN;
    const std::size_t now = part_of(std::min(bytes, in_->data.size()));
    std::memcpy(to, in_->data.data(), now);
    in_->data.erase(0, now);
    return static_cast<std::int64_t>(now);
  }

  std::int64_t write(const void* from, std::size_t bytes) override {
    if (out_ == nullptr) return -ENOTCONN;
    if (is_shut_ || !out_->is_read) return -EPIPE;
    const std::size_t now = part_of(bytes);
    Flow::send(out_, [data = std::string(static_cast<const char*>(from), now)](Flow& flow) { flow.data += data; });
    return static_cast<std::int64_t>(now);
  }

  void listen(int descriptor) {
    port_ = kFirstPort + descriptor - kFirstDescriptor;
    listeners[port_] = this;
  }
  int port() const { return port_; }

  /// The connection becomes readable and writable, or fails, after the way there and back.
  int connect(int port) {
    const Time there = scheduler().now() + scheduler().random().spread(kShortestWay, kLongestWay);
    scheduler().at(there, [port, caller = Scheduler::fiber()->process, self = std::weak_ptr(self_)] {
      const std::shared_ptr<SocketFile*> is_open = self.lock();
      if (is_open == nullptr) return;
      SocketFile* const me = *is_open;
      const auto listener = listeners.find(port);
      if (listener == listeners.end()) {
        me->error_ = ECONNREFUSED;
      } else {
        auto to_caller = std::make_shared<Flow>(), from_caller = std::make_shared<Flow>();
        to_caller->reader = caller;
        from_caller->reader = listener->second->owner;
        me->in_ = to_caller;
        me->out_ = from_caller;
        listener->second->waiting_.emplace_back(from_caller, to_caller);
        Descriptors::current()->notify(*listener->second->owner);
      }
      Descriptors::current()->notify(*caller);
    });
    return -EINPROGRESS;
  }

  std::unique_ptr<SocketFile> accept() {
    if (waiting_.empty()) return nullptr;
    auto accepted = std::make_unique<SocketFile>();
    std::tie(accepted->in_, accepted->out_) = waiting_.front();
    waiting_.pop_front();
    return accepted;
  }

  void shut_down() {
    if (out_ != nullptr && !std::exchange(is_shut_, true)) Flow::send(out_, [](Flow& flow) { flow.ended = true; });
  }
  int take_error() { return std::exchange(error_, 0); }

  Process* owner = Scheduler::fiber()->process;

 private:
  static std::size_t part_of(std::size_t bytes) {
    Random& random = scheduler().random();
    return random.one_in(kPartialOneIn) && bytes > 1 ? 1 + random.below(bytes - 1) : bytes;
  }

  const std::shared_ptr<SocketFile*> self_ = std::make_shared<SocketFile*>(this);  ///< for what is under way
  int port_ = 0;                                                                   ///< on which it listens
  int error_ = 0;
  bool is_shut_ = false;
  std::shared_ptr<Flow> in_, out_;
  std::deque<std::pair<std::shared_ptr<Flow>, std::shared_ptr<Flow>>> waiting_;  ///< to be accepted: in and out
};

SocketFile* find(int descriptor) {
  return Scheduler::fiber() == nullptr ? nullptr : dynamic_cast<SocketFile*>(Descriptors::current()->find(descriptor));
}

int failed(int error) {
  errno = error;
  return -1;
}

ssize_t result_of(std::int64_t result) { return result < 0 ? failed(static_cast<int>(-result)) : result; }

}  // namespace
}  // namespace accord::simulation

using namespace accord::simulation;

extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  if (Scheduler::fiber() == nullptr) {
    static const auto in_library = real<int(int, int, int)>("socket");
    return in_library(domain, type, protocol);
  }
  if (domain != AF_INET) return failed(EAFNOSUPPORT);
  const SimulatorWork work;
  return Descriptors::current()->add(std::make_unique<SocketFile>());
}

int setsockopt(int, int, int, const void*, socklen_t) noexcept { return 0; }

int getsockopt(int descriptor, int, int option, void* value, socklen_t*) noexcept {
  SocketFile* const file = find(descriptor);
  if (file == nullptr || option != SO_ERROR) return failed(ENOPROTOOPT);
  const int error = file->take_error();
  std::memcpy(value, &error, sizeof error);
  return 0;
}

int bind(int descriptor, const sockaddr*, socklen_t) noexcept {
  return find(descriptor) == nullptr ? failed(EBADF) : 0;
}

int listen(int descriptor, int) noexcept {
  const SimulatorWork work;
  SocketFile* const file = find(descriptor);
  if (file == nullptr) return failed(EBADF);
  file->listen(descriptor);
  return 0;
}

int getsockname(int descriptor, sockaddr* address, socklen_t* bytes) noexcept {
  SocketFile* const file = find(descriptor);
  if (file == nullptr) return failed(EBADF);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_port = htons(static_cast<std::uint16_t>(file->port()));
  std::memcpy(address, &own, std::min<std::size_t>(*bytes, sizeof own));
  *bytes = sizeof own;
  return 0;
}

int accept4(int descriptor, sockaddr*, socklen_t*, int) {
  Scheduler::current()->preempt();
  const SimulatorWork work;
  SocketFile* const file = find(descriptor);
  if (file == nullptr) return failed(EBADF);
  std::unique_ptr<SocketFile> accepted = file->accept();
  return accepted == nullptr ? failed(EAGAIN) : Descriptors::current()->add(std::move(accepted));
}

int connect(int descriptor, const sockaddr* address, socklen_t) {
  Scheduler::current()->preempt();
  const SimulatorWork work;
  SocketFile* const file = find(descriptor);
  if (file == nullptr) return failed(EBADF);
  sockaddr_in to;
  std::memcpy(&to, address, sizeof to);
  return failed(-file->connect(ntohs(to.sin_port)));
}

ssize_t send(int descriptor, const void* from, size_t bytes, int) {
  Scheduler::current()->preempt();
  const SimulatorWork work;
  SocketFile* const file = find(descriptor);
  return file == nullptr ? failed(EBADF) : result_of(file->write(from, bytes));
}

ssize_t recv(int descriptor, void* to, size_t bytes, int) {
  Scheduler::current()->preempt();
  const SimulatorWork work;
  SocketFile* const file = find(descriptor);
  return file == nullptr ? failed(EBADF) : result_of(file->read(to, bytes));
}

int shutdown(int descriptor, int) noexcept {
  const SimulatorWork work;
  SocketFile* const file = find(descriptor);
  if (file == nullptr) return failed(EBADF);
  file->shut_down();
  return 0;
}

}  // extern "C"

namespace accord::transport::tcp {

Result<std::vector<std::string>> host_addresses() {
  return std::vector{fmt::format("10.0.0.{}", simulation::Scheduler::fiber()->process->host + 1)};
}

}  // namespace accord::transport::tcp
