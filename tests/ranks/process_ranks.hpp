#pragma once
// Ranks as processes: forked children that meet in a file store, can be killed, and report by their exit code.

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "base/clock.hpp"

namespace accord::testing {

/// How a child ended: its exit code, or 128 + signal.
struct Exit {
  pid_t process = 0;
  int code = -1;
};

/// Forked children. Each runs `body` with its rank and exits with the value that it returns. Children that still run
/// at the end of the test are killed.
class ProcessRanks {
 public:
  ProcessRanks(int size, const std::function<int(Rank)>& body) {
    for (Rank rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        const int code = body(rank);
        std::fflush(nullptr);
        _exit(code);
      }
      exits_.push_back({child, -1});
    }
  }
  ~ProcessRanks() {
    for (Exit& child : exits_)
      if (child.code < 0) {
        ::kill(child.process, SIGKILL);
        waitpid(child.process, nullptr, 0);
      }
  }
  ProcessRanks(const ProcessRanks&) = delete;

  void kill(Rank rank, int signal) { ::kill(exits_[rank].process, signal); }
  pid_t process(Rank rank) const { return exits_[rank].process; }

  /// Waits until the rank has ended and returns its code; -1 at the deadline.
  int wait(Rank rank, Deadline deadline) {
    Exit& child = exits_[rank];
    while (child.code < 0 && !deadline.passed()) {
      int status = 0;
      if (waitpid(child.process, &status, WNOHANG) == child.process)
        child.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      else
        usleep(500);
    }
    return child.code;
  }
  /// Returns the codes of all ranks, -1 for those that still run at the deadline.
  std::vector<int> wait_all(Deadline deadline) {
    std::vector<int> codes;
    for (Rank rank = 0; rank < static_cast<Rank>(exits_.size()); ++rank) codes.push_back(wait(rank, deadline));
    return codes;
  }

 private:
  std::vector<Exit> exits_;
};

/// A new directory that is removed with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "accord-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace accord::testing
