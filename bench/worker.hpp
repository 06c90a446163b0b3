#pragma once
// One rank of a benchmark's peer. It sleeps in a read while others are measured, and measures when it is told to:
//   in:  "all_reduce 8192 1000"   collective, bytes, iterations
//   out: "1.234"                  microseconds for one operation, or "error <why>"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

namespace accord::bench {

struct Command {
  std::string collective;
  std::size_t bytes = 0;
  int iterations = 1;
};

/// Keeps the rank on one core, as all peers do.
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

/// Microseconds of one call of `operation`, over `iterations` after some to warm up.
inline double time_of(int iterations, const std::function<void()>& operation) {
  for (int i = 0; i < iterations / 10 + 2; ++i) operation();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < iterations; ++i) operation();
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / iterations;
}

}  // namespace accord::bench
