#pragma once
// One rank: its process with everything it starts, and its output as lines.

#include <sys/types.h>

#include <array>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "accord/store.hpp"
#include "base/fd.hpp"
#include "cli/launch/console.hpp"
#include "cli/launch/line_splitter.hpp"
#include "cli/launch/watch.hpp"

namespace accord::cli {

/// How a rank is started.
struct RankRequest {
  std::vector<std::string> program;
  std::vector<std::string> environment;
  std::vector<int> processors;  ///< processors it may use; empty: those of the launcher
  std::string prefix;           ///< prefix of its lines on the console, "[3] "
  std::string log_file;         ///< also gets its lines; empty: none
  bool gets_input = false;      ///< gets the launcher's standard input, otherwise none
  Duration grace = {};          ///< for its helper processes, once it has ended
};

/// How a process ended: its exit code, or the signal that killed it.
struct Exit {
  int code = 0;
  int signal = 0;
  bool clean() const { return code == 0 && signal == 0; }
};

/// A rank under a guard of its own. The guard outlives the rank until its helpers, which the rank started directly or
/// indirectly, have ended as well. All of them end with the launcher, however that ends. Not thread-safe.
class RankProcess {
 public:
  /// Fails with kNotFound or kIo, and the reason, if the program cannot be executed.
  static Result<RankProcess> start(const RankRequest& request);
  RankProcess(RankProcess&&) = default;
  RankProcess& operator=(RankProcess&&) = default;

  pid_t process() const { return process_; }
  /// How the rank ended, if it has ended.
  const std::optional<Exit>& exit() const { return exit_; }
  /// True once its helpers have ended, too.
  bool gone() const { return !control_.valid(); }
  /// Checks whether the rank has ended; returns true if that is news.
  bool poll_exit();
  /// Sends a signal to the rank, not to its helpers; SIGKILL goes to all of them. Does nothing if it has ended.
  void send_signal(int signal) const;
  /// REQUIRES: gone().
  void reap();

  /// Adds watches for its end, and for its pipes, whose lines are written to `console`. Pipes are not watched while
  /// the console is full.
  void add_watches(Watches& watches, Console& console);
  /// True while its pipes may still be written to.
  bool output_open() const { return pipes_[0].fd.valid() || pipes_[1].fd.valid(); }
  /// Stops reading: passes on incomplete lines.
  void close_output(Console& console);

 private:
  struct Pipe {
    Stream stream = Stream::kOutput;
    UniqueFd fd;
    LineSplitter lines;
  };
  RankProcess() = default;
  void read_some(Pipe& pipe, Console& console);
  void end_of(Pipe& pipe, Console& console);

  pid_t guard_ = -1;
  pid_t process_ = -1;
  UniqueFd control_;  ///< socket to the guard
  std::optional<Exit> exit_;
  std::string prefix_;
  std::ofstream log_;
  std::array<Pipe, 2> pipes_;
};

}  // namespace accord::cli
