// Clocks and sleeps. The monotonic clock is virtual time. The wall clock has an offset for each host, which jumps.
#include "simulation/interposed_time.hpp"

#include <dlfcn.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <map>

namespace accord::simulation {
namespace {

constexpr Time kEpoch = 1'700'000'000 * kSecond;  // when virtual time is 0
constexpr Time kClockRead = 30;

std::map<int, Time> jumps;  // by host

bool is_wall_clock(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

Time offset_of(clockid_t clock) {
  if (!is_wall_clock(clock)) return 0;
  const auto jump = jumps.find(Scheduler::fiber()->process->host);
  return kEpoch + (jump == jumps.end() ? 0 : jump->second);
}

timespec timespec_of(Time time) { return {.tv_sec = time / kSecond, .tv_nsec = time % kSecond}; }
Time time_of(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

}  // namespace

Time time_of(clockid_t clock, const timespec& at) {
  if (at.tv_sec > kNever / kSecond / 2) return kNever;
  return time_of(at) - offset_of(clock);
}

void jump_wall_clock(int host, Time by) { jumps[host] += by; }
void reset_wall_clocks() { jumps.clear(); }

}  // namespace accord::simulation

using namespace accord::simulation;

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (Scheduler::fiber() == nullptr) {
    static const auto real = reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
    return real(clock, now);
  }
  Scheduler& scheduler = *Scheduler::current();
  scheduler.advance(kClockRead);
  scheduler.preempt();
  *now = timespec_of(scheduler.now() + offset_of(clock));
  return 0;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  *now = {.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now != nullptr) *now = precise.tv_sec;
  return precise.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  if (Scheduler::fiber() == nullptr) {
    using Sleep = int(clockid_t, int, const timespec*, timespec*);
    static const auto real = reinterpret_cast<Sleep*>(dlsym(RTLD_NEXT, "clock_nanosleep"));
    return real(clock, flags, time, left);
  }
  Scheduler& scheduler = *Scheduler::current();
  const Time until = (flags & TIMER_ABSTIME) != 0 ? time_of(clock, *time) : scheduler.now() + time_of(*time);
  scheduler.sleep_until(until + scheduler.random().spread(kMicrosecond, scheduler.pace().wake));
  return 0;
}

int nanosleep(const timespec* time, timespec* left) { return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left); }

int pause() {
  Scheduler::current()->block("a signal", nullptr);
  errno = EINTR;
  return -1;
}

}  // extern "C"
