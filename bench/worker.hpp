#pragma once
// One rank of a benchmark's peer. It sleeps in a read while others are measured, and measures on command:
//   in:  "all_reduce 8192 1000"   collective, bytes, iterations; bytes of all parts if the input is divided, else of
//                                 the buffer
//   out: "1.234"                  microseconds for one operation, or "error <why>"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace accord::bench {

struct Command {
  std::string collective;
  std::size_t bytes = 0;
  int iterations = 1;
};

/// Keeps the rank on one core, as for all peers.
inline void pin_to_core(int rank) {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  const int wanted = rank % CPU_COUNT(&all);
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || seen++ != wanted) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

/// Returns the number in an environment variable.
inline int number_of(const char* variable) { return std::atoi(std::getenv(variable)); }

/// Keeps the rank on its share of the cores: on one, or on several if there are more cores than ranks.
inline void pin_to_share(int rank, int ranks) {
  cpu_set_t all, mine;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&mine);
  const int cores = CPU_COUNT(&all);
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    if (seen++ % ranks == rank % ranks || (cores < ranks && seen - 1 == rank % cores)) CPU_SET(cpu, &mine);
  }
  if (CPU_COUNT(&mine) > 0) sched_setaffinity(0, sizeof mine, &mine);
}

/// Serves commands from `path`.in until it ends; answers go to `path`.out.
inline int serve(const std::string& path, const std::function<std::string(const Command&)>& measure) {
  std::ifstream in(path + ".in");
  std::ofstream out(path + ".out");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    Command command;
    words >> command.collective >> command.bytes >> command.iterations;
    out << measure(command) << std::endl;
  }
  return 0;
}

/// Returns the microseconds of one call of `operation`, after some warm-up calls: the median of up to 15 batches of
/// consecutive calls, so that a batch in which another process had the core does not count.
inline double time_of(int iterations, const std::function<void()>& operation) {
  for (int i = 0; i < iterations / 10 + 2; ++i) operation();
  const int batches = std::clamp(iterations, 1, 15), calls = std::max(1, iterations / batches);
  std::vector<double> times;
  for (int batch = 0; batch < batches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) operation();
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
    times.push_back(spent.count() / calls);
  }
  std::nth_element(times.begin(), times.begin() + batches / 2, times.end());
  return times[static_cast<std::size_t>(batches / 2)];
}

}  // namespace accord::bench
