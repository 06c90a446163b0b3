// A rank is started by its guard (rank_guard.cpp). The launcher's only connection to both is a socket: orders are
// sent to the guard, reports arrive from it, and the end of the socket means that nothing of the rank is left.
// Everything the guard needs is prepared before the fork.
#include "cli/launch/rank_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/packets.hpp"
#include "cli/launch/rank_guard.hpp"

namespace accord::cli {
namespace {

struct Ends {
  UniqueFd ours;
  UniqueFd theirs;
};

Result<Ends> make_pipe() {
  std::array<int, 2> ends = {};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return errno_status(errno, "pipe");
  return Ends{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Result<Ends> make_socket() {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return errno_status(errno, "socketpair");
  return Ends{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Returns the guard's next report, or nothing if there is none yet or the guard is gone; in the latter case `end` is
// set.
std::optional<GuardReport> next_report(int control, int flags, bool& end) {
  GuardReport report;
  const ssize_t got = receive_packet(control, std::as_writable_bytes(std::span(&report, 1)), flags);
  if (got == static_cast<ssize_t>(sizeof report)) return report;
  end = got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  return std::nullopt;
}

}  // namespace

Result<RankProcess> RankProcess::start(const RankRequest& request) {
  RankProcess rank;
  rank.prefix_ = request.prefix;
  if (!request.log_file.empty()) {
    rank.log_.open(request.log_file, std::ios::binary | std::ios::trunc);
    if (!rank.log_) return errno_status(errno, request.log_file);
  }
  ACCORD_ASSIGN_OR_RETURN(Ends output, make_pipe());
  ACCORD_ASSIGN_OR_RETURN(Ends error, make_pipe());
  ACCORD_ASSIGN_OR_RETURN(Ends control, make_socket());
  const UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));

  GuardPlan plan;
  plan.arguments = pointers_to(request.program);
  plan.environment = pointers_to(request.environment);
  CPU_ZERO(&plan.processors);
  for (const int cpu : request.processors) CPU_SET(static_cast<unsigned>(cpu), &plan.processors);
  plan.bound = !request.processors.empty();
  plan.input = request.gets_input ? STDIN_FILENO : nothing.get();
  plan.output = output.theirs.get();
  plan.error = error.theirs.get();
  plan.nothing = nothing.get();
  plan.control = control.theirs.get();
  plan.grace = request.grace;

  rank.guard_ = fork();
  if (rank.guard_ < 0) return errno_status(errno, "fork");
  if (rank.guard_ == 0) guard_rank(plan);

  control.theirs.reset();
  bool end = false;
  const std::optional<GuardReport> first = next_report(control.ours.get(), 0, end);
  if (!first.has_value() || first->event != GuardEvent::kStarted) {
    waitpid(rank.guard_, nullptr, 0);
    return errno_status(first.has_value() ? first->number : ECHILD,
                        fmt::format("cannot execute \"{}\"", request.program[0]));
  }
  rank.process_ = first->number;
  rank.control_ = std::move(control.ours);
  for (Ends* ends : {&output, &error}) fcntl(ends->ours.get(), F_SETFL, O_NONBLOCK);
  rank.pipes_[0].stream = Stream::kOutput;
  rank.pipes_[0].fd = std::move(output.ours);
  rank.pipes_[1].stream = Stream::kError;
  rank.pipes_[1].fd = std::move(error.ours);
  return rank;
}

bool RankProcess::poll_exit() {
  const bool had_ended = exit_.has_value();
  bool end = false;
  while (control_.valid() && !end) {
    const std::optional<GuardReport> report = next_report(control_.get(), MSG_DONTWAIT, end);
    if (report.has_value()) {
      exit_ = report->event == GuardEvent::kKilled ? Exit{0, report->number} : Exit{report->number, 0};
    } else if (end) {
      if (!exit_.has_value()) exit_ = Exit{0, SIGKILL};  // its guard was killed, and the rank with it
      control_.reset();
    } else {
      break;
    }
  }
  return exit_.has_value() && !had_ended;
}

void RankProcess::send_signal(int signal) const {
  if (control_.valid()) (void)!send(control_.get(), &signal, sizeof signal, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void RankProcess::reap() { waitpid(guard_, nullptr, 0); }

void RankProcess::add_watches(Watches& watches, Console& console) {
  if (control_.valid())
    watches.push_back({control_.get(), POLLIN, [] {}});  // poll_exit() runs after each turn of the loop
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
  // The output no longer has a reader: the rank gets SIGPIPE, as it would without a launcher.
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
