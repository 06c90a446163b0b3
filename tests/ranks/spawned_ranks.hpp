#pragma once
// Ranks as processes that run the test that started them: for libraries that do not survive a fork and allow one rank
// per process.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "base/clock.hpp"
#include "ranks/process_ranks.hpp"
#include "ranks/spawned_test.hpp"

namespace accord::testing {

// The environment variables of a rank's process.
inline constexpr const char* kSpawnedRank = "SPAWNED_RANK";
inline constexpr const char* kSpawnedSize = "SPAWNED_SIZE";
inline constexpr const char* kSpawnedStore = "SPAWNED_STORE";

inline bool is_spawned_rank() { return std::getenv(kSpawnedRank) != nullptr; }

/// Called in a rank's process: creates its communicator.
inline Result<Communicator> spawned_communicator(CommunicatorOptions options) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, make_file_store(std::getenv(kSpawnedStore)));
  return Communicator::create(store, std::atoi(std::getenv(kSpawnedRank)), std::atoi(std::getenv(kSpawnedSize)),
                              std::move(options));
}

/// Called in the test's own process: starts one process for each rank, which runs this test again with
/// `variables(rank)` added to the environment. Expects that rank r exits with `codes[r]` within `timeout`; the code
/// of a killed process is 128 + signal. The processes write to the test's output.
inline void spawn_ranks(int size, const std::function<std::vector<std::string>(Rank)>& variables,
                        std::vector<int> codes, Duration timeout) {
  const TemporaryDirectory meeting;
  std::vector<pid_t> processes;
  for (Rank rank = 0; rank < size; ++rank) {
    std::vector<std::string> environment = variables(rank);
    environment.push_back(std::string(kSpawnedRank) + "=" + std::to_string(rank));
    environment.push_back(std::string(kSpawnedSize) + "=" + std::to_string(size));
    environment.push_back(std::string(kSpawnedStore) + "=" + meeting.path() + "/store");
    const pid_t process = spawn_this_test(std::move(environment));
    ASSERT_GT(process, 0);
    processes.push_back(process);
  }
  codes.resize(processes.size(), 0);
  const Deadline deadline = Deadline::in(timeout);
  for (Rank rank = 0; rank < size; ++rank) {
    const pid_t process = processes[static_cast<std::size_t>(rank)];
    int status = 0;
    while (waitpid(process, &status, WNOHANG) == 0) {
      if (deadline.passed()) {
        ADD_FAILURE() << "rank " << rank << " has not ended in time";
        ::kill(process, SIGKILL);
      }
      usleep(2000);
    }
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), codes[static_cast<std::size_t>(rank)])
        << "rank " << rank;
  }
}

}  // namespace accord::testing
