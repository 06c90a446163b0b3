#pragma once
// A process forked from the test, with a pipe through which it reports.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "base/fd.hpp"

namespace accord::testing_support {

/// For events that take far less time unless the test fails.
inline constexpr Duration kLong = std::chrono::seconds(60);

/// Runs `body` in a forked process, which exits with the value that `body` returns. The destructor kills the process
/// if it still runs.
///
/// Fork before the test's process has threads.
class Child {
 public:
  using WriteLine = std::function<void(std::string_view line)>;

  /// `body` gets a function that sends one line to the parent's read_line().
  static Child start(const std::function<int(const WriteLine& write_line)>& body) {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0) return Child(-1, UniqueFd());
    UniqueFd reading(ends[0]);
    UniqueFd writing(ends[1]);
    const pid_t process = fork();
    if (process != 0) return Child(process, std::move(reading));
    reading.reset();
    const int code = body([&writing](std::string_view line) {
      const std::string text = std::string(line) + "\n";
      (void)write_all(writing.get(), std::as_bytes(std::span(text)), Deadline::never(), "pipe");
    });
    _exit(code);
  }

  Child(Child&& other) noexcept : process_(std::exchange(other.process_, -1)), reading_(std::move(other.reading_)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (process_ <= 0) return;
    send(SIGKILL);
    send(SIGCONT);
    wait();
  }

  pid_t process() const { return process_; }
  void send(int signal) const {
    if (process_ > 0) kill(process_, signal);
  }

  /// Stops the process and returns once all its threads have stopped. send(SIGCONT) lets it continue.
  void stop() const {
    send(SIGSTOP);
    while (waitpid(process_, nullptr, WUNTRACED) < 0 && errno == EINTR) {
    }
  }

  /// Returns the child's next line; empty if the child ends, or after a minute.
  std::string read_line() {
    const Deadline deadline = Deadline::in(std::chrono::seconds(60));
    std::string line;
    std::byte letter;
    while (read_all(reading_.get(), {&letter, 1}, deadline, "pipe").ok()) {
      if (letter == std::byte{'\n'}) return line;
      line += static_cast<char>(letter);
    }
    return {};
  }

  /// Waits for the child to end. Returns its exit code, or minus the signal that ended it.
  int wait() {
    int state = 0;
    while (waitpid(process_, &state, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
  }

 private:
  Child(pid_t process, UniqueFd reading) : process_(process), reading_(std::move(reading)) {}
  pid_t process_;
  UniqueFd reading_;
};

}  // namespace accord::testing_support
