// The guard is what the kernel calls a subreaper: whatever the rank starts, directly or indirectly, stays below the
// guard, also after its parent has ended, and in process groups and sessions of its own. So helpers (workers of a
// DataLoader, subprocesses, daemons) are found when the rank has ended: they get SIGTERM, and SIGKILL after the grace
// period. A shell passes no signal on to the commands that it waits for, so these are signalled with it, and have the
// grace period for themselves before their helpers get SIGTERM. The guard leads a session of its own, which no signal
// to the launcher's process group reaches. The end of the launcher ends the control socket, and the rank asks the
// kernel to be killed when its guard dies.
//
// The launcher may have threads, so the guard makes system calls only and allocates nothing. A pipe that closes on
// exec brings back the errno of a failed exec, so that a missing program is an error and not a failed rank.
#include "cli/launch/rank_guard.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>
#include <string_view>

#include "base/clock.hpp"
#include "base/packets.hpp"

namespace accord::cli {
namespace {

/// Interval between rounds of SIGKILL: a process may start another one just before it dies.
constexpr Duration kKillInterval = std::chrono::milliseconds(10);

// Runs in the child; never returns.
[[noreturn]] void become_rank(const GuardPlan& plan, pid_t guard, int report) {
  const auto fail = [&] {
    const int error = errno;
    (void)!write(report, &error, sizeof error);
    _exit(127);
  };
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != guard) _exit(127);  // the guard died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.bound && sched_setaffinity(0, sizeof plan.processors, &plan.processors) != 0) fail();
  if (dup2(plan.input, STDIN_FILENO) < 0 || dup2(plan.output, STDOUT_FILENO) < 0) fail();
  if (dup2(plan.error, STDERR_FILENO) < 0) fail();
  execvpe(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  fail();
  _exit(127);
}

// Returns the errno with which exec failed, 0 if it succeeded.
int exec_error(int report) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(report, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof error) ? error : 0;
}

// Closes all descriptors except the standard ones and `kept_fd`. If an end of another guard's socket stayed open here,
// it would hide its launcher's death.
void close_descriptors(int kept_fd) {
  const auto close_all = [](unsigned first, unsigned last) {
    if (first > last || syscall(SYS_close_range, first, last, 0U) == 0) return;
    const unsigned end = std::min<unsigned>(last, static_cast<unsigned>(sysconf(_SC_OPEN_MAX)));
    for (unsigned fd = first; fd <= end; ++fd) close(static_cast<int>(fd));
  };
  close_all(STDERR_FILENO + 1, static_cast<unsigned>(kept_fd) - 1);
  close_all(static_cast<unsigned>(kept_fd) + 1, ~0U);
}

/// Path of a file in a process's folder in /proc.
class ProcessPath {
 public:
  ProcessPath(pid_t process, std::string_view name) {
    char* const after = std::to_chars(text_.data() + kFolder.size(), text_.data() + 32, process).ptr;
    std::memcpy(text_.data(), kFolder.data(), kFolder.size());
    std::memcpy(after, name.data(), std::min(name.size(), sizeof text_ - 33));
  }
  const char* text() const { return text_.data(); }

 private:
  static constexpr std::string_view kFolder = "/proc/";
  std::array<char, 64> text_ = {};
};

// Returns the beginning of a file in a process's folder in /proc; empty if there is no such process.
std::string_view read_file(pid_t process, std::string_view name, std::array<char, 2048>& buffer) {
  const int file = open(ProcessPath(process, name).text(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t got = read(file, buffer.data(), buffer.size());
  close(file);
  return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

// Returns the parent of a process, 0 if there is no such process.
pid_t parent_of(pid_t process) {
  std::array<char, 2048> buffer;
  // "7 (its name) S 3 ...", where the name may contain anything.
  const std::string_view stat = read_file(process, "/stat", buffer);
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos || name_end + 4 >= stat.size()) return 0;
  pid_t parent = 0;
  std::from_chars(stat.data() + name_end + 4, stat.data() + stat.size(), parent);
  return parent;
}

bool descends(pid_t process, pid_t ancestor) {
  while (process > 1) {
    process = parent_of(process);
    if (process == ancestor) return true;
  }
  return false;
}

bool is_shell(pid_t process) {
  constexpr std::array<std::string_view, 10> kShells = {"ash",  "bash", "busybox", "csh",  "dash",
                                                        "fish", "ksh",  "mksh",    "tcsh", "zsh"};
  std::array<char, 512> program;
  const ssize_t length = readlink(ProcessPath(process, "/exe").text(), program.data(), program.size());
  if (length <= 0) return false;
  const std::string_view path(program.data(), static_cast<std::size_t>(length));
  return std::ranges::find(kShells, path.substr(path.rfind('/') + 1)) != kShells.end();
}

bool catches(pid_t process, int signal) {
  constexpr std::string_view kField = "SigCgt:\t";
  std::array<char, 2048> buffer;
  const std::string_view status = read_file(process, "/status", buffer);
  const std::size_t at = status.find(kField);
  if (at == std::string_view::npos) return false;
  std::uint64_t caught = 0;
  std::from_chars(status.data() + at + kField.size(), status.data() + status.size(), caught, 16);
  return (caught >> (signal - 1) & 1) != 0;
}

// Sends `signal`, unless it should end nothing and `process` is a shell without a trap for it, which it would end.
void deliver(int signal, pid_t process) {
  const bool ends = std::ranges::find(kEndingSignals, signal) != kEndingSignals.end();
  if (ends || !is_shell(process) || catches(process, signal)) kill(process, signal);
}

// True if `process` is a command of the shell `rank`, or of a shell that is such a command.
bool is_command_of(pid_t process, pid_t rank) {
  do {
    process = parent_of(process);
    if (process <= 1 || !is_shell(process)) return false;
  } while (process != rank);
  return true;
}

// Calls act(process) for each descendant of this process.
template <typename Act>
void for_each_descendant(const Act& act) {
  const pid_t self = getpid();
  const int folder = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(dirent64) std::array<char, 4096> entries;
  for (ssize_t bytes = 0; (bytes = getdents64(folder, entries.data(), entries.size())) > 0;) {
    for (ssize_t at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries.data() + at);
      at += entry->d_reclen;
      pid_t process = 0;
      const char* const end = entry->d_name + std::strlen(entry->d_name);
      if (std::from_chars(entry->d_name, end, process).ptr == end && descends(process, self)) act(process);
    }
  }
  close(folder);
}

void signal_descendants(std::initializer_list<int> signals) {
  for_each_descendant([&](pid_t process) {
    for (const int signal : signals) kill(process, signal);
  });
}

/// Watches over the rank from its start to the end of its last helper.
class Guard {
 public:
  Guard(const GuardPlan& plan, pid_t rank) : control_(plan.control), grace_(plan.grace), rank_(rank) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    children_ = signalfd(-1, &children, SFD_NONBLOCK | SFD_CLOEXEC);
  }

  void run() {
    while (reap()) {
      if (deadline_.passed()) {
        signal_descendants({SIGKILL});
        deadline_ = Deadline::in(kKillInterval);
      }
      std::array<pollfd, 2> polled = {{{children_, POLLIN, 0}, {control_, POLLIN, 0}}};
      poll(polled.data(), polled.size(), deadline_.poll_milliseconds());
      signalfd_siginfo info;
      while (read(children_, &info, sizeof info) > 0) continue;
      if (polled[1].revents != 0) handle_command();
    }
  }

 private:
  // Reaps the processes that have ended; returns false if none is left.
  bool reap() {
    for (;;) {
      siginfo_t info = {};
      if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) return errno != ECHILD;
      if (info.si_pid == 0) break;
      if (info.si_pid != rank_) continue;
      rank_ = 0;
      report({info.si_code == CLD_EXITED ? GuardEvent::kExited : GuardEvent::kKilled, info.si_status});
      if (!killing_) deadline_ = Deadline::in(grace_);
    }
    if (rank_ == 0 && !ending_helpers_ && !commands_run()) {
      ending_helpers_ = true;
      signal_descendants({SIGTERM, SIGCONT});  // a stopped process would not notice SIGTERM alone
    }
    return true;
  }

  bool commands_run() const {
    return std::any_of(commands_.begin(), commands_.begin() + command_count_,
                       [self = getpid()](pid_t command) { return descends(command, self); });
  }

  void signal_rank(int signal) {
    // Find all commands before signalling the first: when a shell dies, its commands become another's children.
    if (is_shell(rank_)) {
      for_each_descendant([&](pid_t process) {
        const auto known = commands_.begin() + command_count_;
        if (command_count_ == commands_.size() || std::find(commands_.begin(), known, process) != known) return;
        if (is_command_of(process, rank_)) commands_[command_count_++] = process;
      });
    }
    const pid_t self = getpid();
    for (std::size_t i = 0; i < command_count_; ++i) {
      if (descends(commands_[i], self)) deliver(signal, commands_[i]);
    }
    deliver(signal, rank_);
  }

  void handle_command() {
    int signal = 0;
    const ssize_t got = receive_packet(control_, std::as_writable_bytes(std::span(&signal, 1)), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got == static_cast<ssize_t>(sizeof signal) && signal != SIGKILL) {
      if (rank_ != 0) signal_rank(signal);
      return;
    }
    if (got <= 0) control_ = -1;  // poll() skips negative descriptors
    killing_ = true;
    deadline_ = Deadline::in(Duration::zero());
  }

  void report(const GuardReport& report) const {
    if (control_ >= 0) (void)!send(control_, &report, sizeof report, MSG_NOSIGNAL);
  }

  int control_;
  int children_ = -1;
  const Duration grace_;
  pid_t rank_;                           ///< 0: it has ended
  std::array<pid_t, 64> commands_ = {};  ///< commands of the shell that is the rank, signalled with it
  std::size_t command_count_ = 0;
  bool ending_helpers_ = false;
  bool killing_ = false;
  Deadline deadline_ = Deadline::never();  ///< for the processes that are left
};

}  // namespace

void guard_rank(const GuardPlan& plan) {
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, "accord guard");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);

  const pid_t self = getpid();
  std::array<int, 2> ends = {-1, -1};
  const auto send_report = [&](const GuardReport& report) {
    (void)!send(plan.control, &report, sizeof report, MSG_NOSIGNAL);
  };
  const bool piped = pipe2(ends.data(), O_CLOEXEC) == 0;
  const pid_t rank = piped ? fork() : -1;
  if (rank < 0) {
    send_report({GuardEvent::kNotStarted, errno});
    _exit(1);
  }
  if (rank == 0) become_rank(plan, self, ends[1]);
  close(ends[1]);
  if (const int failed = exec_error(ends[0]); failed != 0) {
    send_report({GuardEvent::kNotStarted, failed});
    _exit(1);
  }
  // The pipes of the rank, and of the launcher, must end with the processes that use them.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(plan.nothing, fd);
  close_descriptors(plan.control);
  send_report({GuardEvent::kStarted, rank});
  Guard(plan, rank).run();
  _exit(0);
}

}  // namespace accord::cli
