#include "base/unshared_fd.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <utility>

namespace accord {
namespace {

struct UnsharedSockets {
  std::mutex mutex;
  std::set<int> all;
};

UnsharedSockets& unshared_sockets() {
  static UnsharedSockets* const sockets = [] {
    pthread_atfork([] { unshared_sockets().mutex.lock(); }, [] { unshared_sockets().mutex.unlock(); },
                   [] {
                     const int silent = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
                     for (const int socket : unshared_sockets().all) ::dup3(silent, socket, O_CLOEXEC);
                     ::close(silent);
                     unshared_sockets().mutex.unlock();
                   });
    return new UnsharedSockets;
  }();
  return *sockets;
}

}  // namespace

UnsharedFd::UnsharedFd(UniqueFd socket) : socket_(std::move(socket)) {
  if (!socket_.valid()) return;
  UnsharedSockets& sockets = unshared_sockets();
  const std::lock_guard lock(sockets.mutex);
  sockets.all.insert(socket_.get());
}

UnsharedFd& UnsharedFd::operator=(UnsharedFd&& other) noexcept {
  if (this == &other) return *this;
  reset();
  socket_ = std::move(other.socket_);
  return *this;
}

UnsharedFd::~UnsharedFd() { reset(); }

void UnsharedFd::reset() {
  if (!socket_.valid()) return;
  UnsharedSockets& sockets = unshared_sockets();
  const std::lock_guard lock(sockets.mutex);
  sockets.all.erase(socket_.get());
  socket_.reset();
}

}  // namespace accord
