#pragma once
// Threads that share a piece of work and synchronize after it, and the simplest such work: reading memory.

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "bench/worker.hpp"

namespace accord::bench {

/// A barrier of all threads.
class Meeting {
 public:
  explicit Meeting(int threads) : threads_(threads) {}
  void arrive() {
    const int round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_ = 0;
      round_ = round + 1;
    }
    while (round_.load() == round) _mm_pause();
  }

 private:
  int threads_;
  std::atomic<int> arrived_{0}, round_{0};
};

/// The work of one thread in iteration `index`.
using SharedWork = std::function<void(int thread, std::size_t index)>;

/// Returns the lower quartile of the iterations' times in microseconds. Each thread has its own core.
inline double time_of_work(int threads, int iterations, const SharedWork& work) {
  Meeting meeting(threads);
  std::vector<double> times(static_cast<std::size_t>(iterations));
  const auto run = [&](int thread) {
    bench::pin_to_core(thread);
    work(thread, 0);
    for (int i = 0; i < iterations; ++i) {
      meeting.arrive();
      const auto start = std::chrono::steady_clock::now();
      work(thread, static_cast<std::size_t>(i));
      meeting.arrive();
      const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
      if (thread == 0) times[static_cast<std::size_t>(i)] = spent.count();
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
  std::thread(run, 0).join();
  for (std::thread& other : others) other.join();
  std::nth_element(times.begin(), times.begin() + iterations / 4, times.end());
  return times[static_cast<std::size_t>(iterations / 4)];
}

/// Reads thread `thread`'s share of `bytes` at `data`, a multiple of 64 bytes, and adds it up, 64 bytes at a time.
inline void read_share(const std::byte* data, std::size_t bytes, int thread, int threads) {
  static std::atomic<int> kept{0};  // keeps the result, so that the reads are not optimized away
  const std::size_t vectors = bytes / 64;
  const std::size_t first = vectors * static_cast<std::size_t>(thread) / static_cast<std::size_t>(threads);
  const std::size_t last = vectors * static_cast<std::size_t>(thread + 1) / static_cast<std::size_t>(threads);
  typedef int Vector __attribute__((vector_size(64)));
  Vector sums[4] = {};
  const Vector* const from = reinterpret_cast<const Vector*>(data);
  for (std::size_t i = first; i + 4 <= last; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) sums[j] += from[i + j];
  }
  const Vector sum = sums[0] + sums[1] + sums[2] + sums[3];
  kept += sum[0] + sum[7] + sum[15];
}

}  // namespace accord::bench
