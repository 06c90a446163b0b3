// The handler sets a flag, for code that checks now and then, and makes a descriptor readable, for code that waits.
#include "cli/interrupt.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "base/blocked_signals.hpp"
#include "base/clock.hpp"

namespace accord::cli {
namespace {

constexpr Duration kRank0Delay = std::chrono::milliseconds(700);
constexpr Duration kOtherRanksDelay = std::chrono::milliseconds(2500);

volatile sig_atomic_t interrupts = 0;
volatile sig_atomic_t interrupt_fd = -1;

void on_interrupt(int) {
  interrupts = 1;
  const std::uint64_t one = 1;
  (void)!write(interrupt_fd, &one, sizeof one);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  interrupts = 0;
  interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
}

InterruptWatch::~InterruptWatch() {
  signal(SIGINT, SIG_DFL);
  close(interrupt_fd);
  interrupt_fd = -1;
}

bool InterruptWatch::interrupted() const { return interrupts != 0; }

int InterruptWatch::descriptor() const { return interrupt_fd; }

InterruptDeadline::InterruptDeadline(Rank rank, std::function<void()> on_forced_end)
    : rank_(rank), on_forced_end_(std::move(on_forced_end)), over_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const BlockedSignals blocked;
  thread_ = std::thread([this] { wait(); });
}

InterruptDeadline::~InterruptDeadline() {
  const std::uint64_t one = 1;
  (void)!write(over_.get(), &one, sizeof one);
  thread_.join();
}

void InterruptDeadline::wait() const {
  std::array<pollfd, 2> fds = {{{over_.get(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}}};
  while (poll(fds.data(), fds.size(), -1) <= 0) {
  }
  if (fds[0].revents != 0) return;
  const Deadline deadline = Deadline::in(rank_ == 0 ? kRank0Delay : kOtherRanksDelay);
  if (wait_readable(over_.get(), deadline, "the end of the command").ok()) return;
  if (rank_ == 0) on_forced_end_();
  std::fflush(nullptr);
  _exit(kInterrupted);
}

}  // namespace accord::cli
