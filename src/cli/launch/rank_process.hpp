#pragma once
// One rank: its process with all that it starts, and its output as lines.

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

/// What a rank is started with.
struct RankRequest {
  std::vector<std::string> program;
  std::vector<std::string> environment;
  std::vector<int> processors;  ///< that it may use; empty: those of the launcher
  std::string prefix;           ///< of its lines on the console, "[3] "
  std::string log_file;         ///< that gets its lines too; empty: none
  bool gets_input = false;      ///< the launcher's standard input, else none
  Duration grace = {};          ///< for its helper processes, once it has ended
};

/// How a process ended: its exit code, or the signal that killed it.
struct Exit {
  int code = 0;
  int signal = 0;
  bool clean() const { return code == 0 && signal == 0; }
};

/// A rank under a guard of its own, which outlives it until its helpers, the processes that it started and those that
/// these started, have ended as well. All of them end with the launcher, however that ends. Not thread-safe.
class RankProcess {
 public:
  /// kNotFound or kIo with the reason if the program cannot be executed.
  static Result<RankProcess> start(const RankRequest& request);
  RankProcess(RankProcess&&) = default;
  RankProcess& operator=(RankProcess&&) = default;

  pid_t process() const { return process_; }
  /// How it ended, if it has.
  const std::optional<Exit>& exit() const { return exit_; }
  /// True once its helpers have ended, too.
  bool gone() const { return !control_.valid(); }
  /// Looks whether it has ended; true if that is news.
  bool look();
  /// To the rank, not to its helpers; but SIGKILL is for all of them. Nothing if it has ended.
  void send_signal(int signal) const;
  /// REQUIRES: gone().
  void reap();

  /// Its pipes as watches that write its lines to `console`; none while the console is full.
  void add_watches(Watches& watches, Console& console);
  /// True while somebody may still write to its pipes.
  bool output_open() const { return pipes_[0].fd.valid() || pipes_[1].fd.valid(); }
  /// Reads no more: gives out incomplete lines.
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
  UniqueFd control_;  ///< to the guard
  std::optional<Exit> exit_;
  std::string prefix_;
  std::ofstream log_;
  std::array<Pipe, 2> pipes_;
};

}  // namespace accord::cli
