#pragma once
// One rank: its process, and its output as lines.

#include <sys/types.h>

#include <array>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "accord/status.hpp"
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
};

/// How a process ended: its exit code, or the signal that killed it.
struct Exit {
  int code = 0;
  int signal = 0;
  bool clean() const { return code == 0 && signal == 0; }
};

/// A process that leads a process group of its own, so that signals reach what it starts too, and that dies with the
/// launcher. It stays a zombie until reap(), so its group's number cannot become somebody else's. Not thread-safe.
class RankProcess {
 public:
  /// kNotFound or kIo with the reason if the program cannot be executed.
  static Result<RankProcess> start(const RankRequest& request);
  RankProcess(RankProcess&&) = default;
  RankProcess& operator=(RankProcess&&) = default;

  pid_t process() const { return process_; }
  /// How it ended, if it has.
  const std::optional<Exit>& exit() const { return exit_; }
  /// Looks whether it has ended; true if that is news.
  bool look();
  /// To its process group; nothing if that is gone.
  void send_signal(int signal) const;
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

  pid_t process_ = -1;
  std::optional<Exit> exit_;
  std::string prefix_;
  std::ofstream log_;
  std::array<Pipe, 2> pipes_;
};

}  // namespace accord::cli
