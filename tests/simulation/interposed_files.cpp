// The system calls of simulated processes on descriptors, memory and chance. Calls on descriptors that are not
// simulated, and those of the simulator itself, go to the C library.
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "simulation/descriptors.hpp"
#include "simulation/scheduler.hpp"

namespace accord::simulation {
namespace {

/// True if a simulated process makes this call.
bool is_simulated() { return Scheduler::fiber() != nullptr && !SimulatorWork::is_under_way(); }

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

class EventFile final : public OpenFile {
 public:
  explicit EventFile(std::uint64_t count) : count_(count) {}
  std::uint32_t events() const override {
    return count_ > 0 ? std::uint32_t{EPOLLIN | EPOLLOUT} : std::uint32_t{EPOLLOUT};
  }
  std::int64_t read(void* to, std::size_t bytes) override {
    if (bytes < sizeof count_) return -EINVAL;
    if (count_ == 0) return -EAGAIN;
    std::memcpy(to, &count_, sizeof count_);
    count_ = 0;
    return sizeof count_;
  }
  std::int64_t write(const void* from, std::size_t bytes) override {
    std::uint64_t added;
    if (bytes != sizeof added) return -EINVAL;
    std::memcpy(&added, from, sizeof added);
    count_ += added;
    Descriptors::current()->notify(*Scheduler::fiber()->process);
    return sizeof added;
  }

 private:
  std::uint64_t count_;
};

std::int64_t result_of(std::int64_t result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

Time deadline_of(int milliseconds) {
  return milliseconds < 0 ? kNever : Scheduler::current()->now() + milliseconds * kMillisecond;
}

short poll_events(const pollfd& entry) {
  OpenFile* const file = Descriptors::current()->find(entry.fd);
  if (file == nullptr) return POLLNVAL;
  return static_cast<short>(file->events() & static_cast<std::uint32_t>(entry.events | POLLERR | POLLHUP));
}

}  // namespace
}  // namespace accord::simulation

using namespace accord::simulation;

extern "C" {

pid_t getpid() noexcept {
  if (Scheduler::fiber() != nullptr) return Scheduler::fiber()->process->pid;
  static const auto in_library = real<pid_t()>("getpid");
  return in_library();
}

int eventfd(unsigned count, int) noexcept {
  const SimulatorWork work;
  return Descriptors::current()->add(std::make_unique<EventFile>(count));
}

int epoll_create1(int) noexcept {
  const SimulatorWork work;
  return Descriptors::current()->open_epoll();
}

int epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) noexcept {
  const SimulatorWork work;
  return Descriptors::current()->control_epoll(epoll, operation, descriptor, event);
}

int epoll_wait(int epoll, epoll_event* ready, int limit, int milliseconds) {
  Scheduler::current()->preempt();
  return Descriptors::current()->wait_epoll(epoll, ready, limit, deadline_of(milliseconds));
}

int poll(pollfd* entries, nfds_t count, int milliseconds) {
  if (!is_simulated()) {
    static const auto in_library = real<int(pollfd*, nfds_t, int)>("poll");
    return in_library(entries, count, milliseconds);
  }
  Scheduler& scheduler = *Scheduler::current();
  scheduler.preempt();
  const Time deadline = deadline_of(milliseconds);
  while (true) {
    int ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
      entries[i].revents = entries[i].fd < 0 ? short{0} : poll_events(entries[i]);
      if (entries[i].revents != 0) ++ready;
    }
    if (ready > 0 || deadline <= scheduler.now()) return ready;
    scheduler.block("descriptors", Scheduler::fiber()->process, deadline);
  }
}

ssize_t read(int descriptor, void* to, size_t bytes) {
  if (OpenFile* const file = descriptor < kFirstDescriptor ? nullptr : Descriptors::current()->find(descriptor))
    return result_of(file->read(to, bytes));
  static const auto in_library = real<ssize_t(int, void*, size_t)>("read");
  return in_library(descriptor, to, bytes);
}

ssize_t write(int descriptor, const void* from, size_t bytes) {
  if (OpenFile* const file = descriptor < kFirstDescriptor ? nullptr : Descriptors::current()->find(descriptor)) {
    Scheduler::current()->preempt();
    return result_of(file->write(from, bytes));
  }
  static const auto in_library = real<ssize_t(int, const void*, size_t)>("write");
  return in_library(descriptor, from, bytes);
}

int close(int descriptor) {
  if (descriptor >= kFirstDescriptor) {
    const SimulatorWork work;
    return Descriptors::current()->close(descriptor) ? 0 : -1;
  }
  if (is_simulated()) {
    const SimulatorWork work;
    Descriptors::current()->forget_file(descriptor);
  }
  static const auto in_library = real<int(int)>("close");
  return in_library(descriptor);
}

int memfd_create(const char* name, unsigned flags) noexcept {
  static const auto in_library = real<int(const char*, unsigned)>("memfd_create");
  const int file = in_library(name, flags);
  if (file >= 0 && is_simulated()) {
    const SimulatorWork work;
    Descriptors::current()->note_file(file);
  }
  return file;
}

void* mmap(void* begin, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  static const auto in_library = real<void*(void*, size_t, int, int, int, off_t)>("mmap");
  void* const memory = in_library(begin, bytes, protection, flags, file, offset);
  if (memory != MAP_FAILED && is_simulated()) {
    const SimulatorWork work;
    Descriptors::current()->note_mapping(memory, bytes);
  }
  return memory;
}

int munmap(void* begin, size_t bytes) noexcept {
  if (is_simulated()) {
    const SimulatorWork work;
    Descriptors::current()->forget_mapping(begin);
  }
  static const auto in_library = real<int(void*, size_t)>("munmap");
  return in_library(begin, bytes);
}

// Processes watch each other by pidfd_open(), for which the C library has no function yet.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_pidfd_open && is_simulated()) {
    const SimulatorWork work;
    return Descriptors::current()->open_process(static_cast<int>(arguments[0]));
  }
  static const auto in_library = real<long(long, ...)>("syscall");
  return in_library(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

ssize_t getrandom(void* to, size_t bytes, unsigned flags) {
  if (Scheduler::fiber() == nullptr) {
    static const auto in_library = real<ssize_t(void*, size_t, unsigned)>("getrandom");
    return in_library(to, bytes, flags);
  }
  for (std::size_t i = 0; i < bytes; ++i)
    static_cast<unsigned char*>(to)[i] = static_cast<unsigned char>(Scheduler::current()->random().next());
  return static_cast<ssize_t>(bytes);
}

// Functions that a process registers for its end, or for a fork, would outlive it here.
int __cxa_atexit(void (*function)(void*), void* argument, void* library) noexcept {
  if (Scheduler::fiber() != nullptr) return 0;
  static const auto in_library = real<int(void (*)(void*), void*, void*)>("__cxa_atexit");
  return in_library(function, argument, library);
}
int __register_atfork(void (*before)(), void (*in_parent)(), void (*in_child)(), void* library) noexcept {
  if (Scheduler::fiber() != nullptr) return 0;
  static const auto in_library = real<int(void (*)(), void (*)(), void (*)(), void*)>("__register_atfork");
  return in_library(before, in_parent, in_child, library);
}

}  // extern "C"

std::random_device::result_type std::random_device::_M_getval() {
  return static_cast<result_type>(Scheduler::current()->random().next());
}
