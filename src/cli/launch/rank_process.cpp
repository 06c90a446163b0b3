// fork and exec by hand, since posix_spawn knows no parent-death signal. Everything the child needs is made before the fork;
// between fork and exec it makes system calls only. A pipe that closes on exec brings back the errno of a failed exec, so
// that a program that does not exist is an error here and not a rank that failed.
#include "cli/launch/rank_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace accord::cli {
namespace {

struct PipeEnds {
  UniqueFd read;
  UniqueFd write;
};

Result<PipeEnds> make_pipe() {
  std::array<int, 2> ends = {};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return errno_status(errno, "pipe");
  return PipeEnds{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// What the child needs, ready for use without memory allocation.
struct ChildPlan {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  cpu_set_t processors;
  bool bound = false;
  pid_t launcher = 0;
  int input = -1, output = -1, error = -1, report = -1;
};

// In the child: never returns.
[[noreturn]] void become_rank(const ChildPlan& plan) {
  const auto give_up = [&] {
    const int error = errno;
    [[maybe_unused]] const ssize_t told = write(plan.report, &error, sizeof error);
    _exit(127);
  };
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.launcher) _exit(127);  // it died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.bound && sched_setaffinity(0, sizeof plan.processors, &plan.processors) != 0) give_up();
  if (dup2(plan.input, STDIN_FILENO) < 0 || dup2(plan.output, STDOUT_FILENO) < 0) give_up();
  if (dup2(plan.error, STDERR_FILENO) < 0) give_up();
  execvpe(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  give_up();
  _exit(127);
}

// The errno that exec failed with, 0 if it did not.
int exec_error(int report) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(report, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof error) ? error : 0;
}

}  // namespace

Result<RankProcess> RankProcess::start(const RankRequest& request) {
  RankProcess rank;
  rank.prefix_ = request.prefix;
  if (!request.log_file.empty()) {
    rank.log_.open(request.log_file, std::ios::binary | std::ios::trunc);
    if (!rank.log_) return errno_status(errno, request.log_file);
  }
  ACCORD_ASSIGN_OR_RETURN(PipeEnds output, make_pipe());
  ACCORD_ASSIGN_OR_RETURN(PipeEnds error, make_pipe());
  ACCORD_ASSIGN_OR_RETURN(PipeEnds report, make_pipe());
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));

  ChildPlan plan;
  plan.arguments = pointers_to(request.program);
  plan.environment = pointers_to(request.environment);
  CPU_ZERO(&plan.processors);
  for (const int cpu : request.processors) CPU_SET(static_cast<unsigned>(cpu), &plan.processors);
  plan.bound = !request.processors.empty();
  plan.launcher = getpid();
  plan.input = request.gets_input ? STDIN_FILENO : nothing.get();
  plan.output = output.write.get();
  plan.error = error.write.get();
  plan.report = report.write.get();

  rank.process_ = fork();
  if (rank.process_ < 0) return errno_status(errno, "fork");
  if (rank.process_ == 0) become_rank(plan);
  setpgid(rank.process_, rank.process_);  // the child does so too; whoever comes first

  report.write.reset();
  if (const int failed = exec_error(report.read.get()); failed != 0) {
    waitpid(rank.process_, nullptr, 0);
    return errno_status(failed, fmt::format("cannot execute \"{}\"", request.program[0]));
  }
  for (PipeEnds* ends : {&output, &error}) fcntl(ends->read.get(), F_SETFL, O_NONBLOCK);
  rank.pipes_[0].stream = Stream::kOutput;
  rank.pipes_[0].fd = std::move(output.read);
  rank.pipes_[1].stream = Stream::kError;
  rank.pipes_[1].fd = std::move(error.read);
  return rank;
}

bool RankProcess::look() {
  if (exit_.has_value()) return false;
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return false;
  exit_ = info.si_code == CLD_EXITED ? Exit{info.si_status, 0} : Exit{0, info.si_status};
  return true;
}

void RankProcess::send_signal(int signal) const { kill(-process_, signal); }

void RankProcess::reap() { waitpid(process_, nullptr, 0); }

void RankProcess::add_watches(Watches& watches, Console& console) {
  for (Pipe& pipe : pipes_) {
    if (!pipe.fd.valid() || console.full(pipe.stream)) continue;
    watches.push_back({pipe.fd.get(), POLLIN, [this, &pipe, &console] { read_some(pipe, console); }});
  }
}

void RankProcess::close_output(Console& console) {
  for (Pipe& pipe : pipes_) {
    if (pipe.fd.valid()) read_some(pipe, console);
    if (pipe.fd.valid()) end_of(pipe, console);
  }
}

void RankProcess::read_some(Pipe& pipe, Console& console) {
  // Nobody reads it any more: the rank is told by SIGPIPE, as it would be without a launcher.
  if (console.broken(pipe.stream) && !log_.is_open()) return end_of(pipe, console);
  std::array<char, 64 * 1024> bytes;
  const ssize_t got = read(pipe.fd.get(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return end_of(pipe, console);
  pipe.lines.add(std::string_view(bytes.data(), static_cast<std::size_t>(got)), [&](std::string_view line) {
    console.write_line(pipe.stream, prefix_, line);
    if (log_.is_open()) log_ << line << '\n';
  });
  if (log_.is_open()) log_.flush();
}

void RankProcess::end_of(Pipe& pipe, Console& console) {
  pipe.fd.reset();
  pipe.lines.finish([&](std::string_view line) {
    console.write_line(pipe.stream, prefix_, line);
    if (log_.is_open()) log_ << line << '\n' << std::flush;
  });
}

}  // namespace accord::cli
