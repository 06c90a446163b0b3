// The threads, locks and conditions of POSIX for simulated processes. A program's own definitions take precedence over
// those of the C library, also for the shared libraries that it uses. Locks keep their state in the memory of the
// object of POSIX, which starts as zeros. Outside of processes there is only one thread, and a lock is always free.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "simulation/interposed_time.hpp"
#include "simulation/scheduler.hpp"

namespace accord::simulation {
namespace {

struct Mutex {
  enum : int { kFree, kHeld, kWanted } state;
  unsigned again;  ///< how often its holder has locked it in addition
  int holder;
  unsigned unused;
  int kind;
};
static_assert(sizeof(Mutex) <= sizeof(pthread_mutex_t));
Mutex& view(pthread_mutex_t* mutex) { return *reinterpret_cast<Mutex*>(mutex); }

struct RwLock {
  int readers;
  int has_writer;
};
static_assert(sizeof(RwLock) <= sizeof(pthread_rwlock_t));
RwLock& view(pthread_rwlock_t* lock) { return *reinterpret_cast<RwLock*>(lock); }

/// The fiber that may wait; null if nobody may.
Fiber* waiter() { return SimulatorWork::is_under_way() ? nullptr : Scheduler::fiber(); }

void preempt() {
  if (waiter() != nullptr) Scheduler::current()->preempt();
}

void block(const char* what, const void* which) {
  if (waiter() == nullptr) {
    std::fprintf(stderr, "the simulator itself would wait for %s\n", what);
    std::abort();
  }
  Scheduler::current()->block(what, which);
}

int holder_number() { return waiter() == nullptr ? -1 : static_cast<int>(waiter()->id); }

int lock(Mutex& mutex, bool has_waited = false) {
  if (mutex.state != Mutex::kFree && mutex.kind == PTHREAD_MUTEX_RECURSIVE_NP && mutex.holder == holder_number()) {
    ++mutex.again;
    return 0;
  }
  while (mutex.state != Mutex::kFree) {
    mutex.state = Mutex::kWanted;
    block("a mutex", &mutex);
    has_waited = true;
  }
  mutex.state = has_waited ? Mutex::kWanted : Mutex::kHeld;
  mutex.holder = holder_number();
  return 0;
}

void unlock(Mutex& mutex) {
  if (mutex.again > 0) {
    --mutex.again;
    return;
  }
  const bool is_wanted = mutex.state == Mutex::kWanted;
  mutex.state = Mutex::kFree;
  mutex.holder = 0;
  if (is_wanted && Scheduler::current() != nullptr) Scheduler::current()->wake_one(&mutex);
}

int wait(pthread_cond_t* condition, pthread_mutex_t* mutex, Time deadline) {
  if (waiter() == nullptr) std::abort();
  Scheduler& scheduler = *Scheduler::current();
  unlock(view(mutex));
  bool woken = true;
  if (scheduler.random().one_in(scheduler.pace().spurious_one_in)) {
    scheduler.yield();
  } else {
    woken = scheduler.block("a condition", condition, deadline);
  }
  lock(view(mutex));
  return woken ? 0 : ETIMEDOUT;
}

// The library's threads are started through a function and an argument.
struct Start {
  void* (*function)(void*);
  void* argument;
};

}  // namespace
}  // namespace accord::simulation

using namespace accord::simulation;

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*function)(void*), void* argument) noexcept {
  if (Scheduler::fiber() == nullptr) {
    std::fputs("the simulator itself has only one thread\n", stderr);
    std::abort();
  }
  const Start start{function, argument};
  Fiber& fiber =
      Scheduler::current()->start_thread(*Scheduler::fiber()->process, [start] { start.function(start.argument); });
  *thread = static_cast<pthread_t>(fiber.id);
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  Scheduler::current()->join(thread);
  if (result != nullptr) *result = nullptr;
  return 0;
}

int pthread_detach(pthread_t) noexcept { return 0; }

pthread_t pthread_self() noexcept {
  if (const Fiber* const fiber = Scheduler::fiber()) return static_cast<pthread_t>(fiber->id);
  static const auto in_library = reinterpret_cast<pthread_t (*)()>(dlsym(RTLD_NEXT, "pthread_self"));
  return in_library();
}

int pthread_setname_np(pthread_t, const char* name) noexcept {
  const SimulatorWork work;
  if (Fiber* const fiber = Scheduler::fiber()) fiber->name = name;
  return 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  preempt();
  return lock(view(mutex));
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  preempt();
  return view(mutex).state == Mutex::kFree ? lock(view(mutex)) : EBUSY;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  unlock(view(mutex));
  preempt();
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) { return wait(condition, mutex, kNever); }

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  return wait(condition, mutex, time_of(CLOCK_REALTIME, *until));
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  return wait(condition, mutex, time_of(clock, *until));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  preempt();
  if (Scheduler::current() != nullptr) Scheduler::current()->wake_one(condition);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  preempt();
  if (Scheduler::current() != nullptr) Scheduler::current()->wake_all(condition);
  return 0;
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  preempt();
  while (view(lock).has_writer != 0) block("a lock for reading", lock);
  ++view(lock).readers;
  return 0;
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  preempt();
  while (view(lock).has_writer != 0 || view(lock).readers > 0) block("a lock for writing", lock);
  view(lock).has_writer = 1;
  return 0;
}

int pthread_rwlock_tryrdlock(pthread_rwlock_t* lock) noexcept {
  return view(lock).has_writer != 0 ? EBUSY : pthread_rwlock_rdlock(lock);
}

int pthread_rwlock_trywrlock(pthread_rwlock_t* lock) noexcept {
  return view(lock).has_writer != 0 || view(lock).readers > 0 ? EBUSY : pthread_rwlock_wrlock(lock);
}

int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  if (view(lock).has_writer != 0) {
    view(lock).has_writer = 0;
  } else {
    --view(lock).readers;
  }
  if (Scheduler::current() != nullptr) Scheduler::current()->wake_all(lock);
  preempt();
  return 0;
}

int pthread_once(pthread_once_t* once, void (*function)()) {
  enum : int { kNotYet, kUnderWay, kDone };
  while (*once == kUnderWay) Scheduler::current()->yield();
  if (*once == kDone) return 0;
  *once = kUnderWay;
  function();
  *once = kDone;
  return 0;
}

int sched_yield() noexcept {
  if (waiter() != nullptr) Scheduler::current()->yield();
  return 0;
}

}  // extern "C"
