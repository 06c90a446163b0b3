// The host's clock measures the time of several runs of a kernel, from an idle stream to an idle stream. What launching
// and waiting add is the same for all kernels of a shape. Every kernel runs once beforehand, which also loads it. The
// rounds go through all kernels in turn, so a disturbance does not hit the runs of one kernel alone, and the best round
// of a kernel counts.
#include "device/product_timing.hpp"

#include <algorithm>
#include <vector>

namespace accord::device {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kRounds = 3, kMostRuns = 20;
constexpr Seconds kRoundTime{200e-6};
// A kernel that takes longer by this factor after a round is not timed again.
constexpr double kMuchSlower = 1.3;
// Another kernel than the library's first must be faster by this factor, which the clock can tell from chance.
constexpr double kFaster = 1.03;

/// Times candidates for one product.
class Stopwatch {
 public:
  Stopwatch(Blas& blas, Runtime& runtime, const Product& product, Device device, Stream stream, const Now& now)
      : blas_(blas), runtime_(runtime), product_(product), device_(device), stream_(stream), now_(now) {}

  /// Returns the time of one of `runs` runs.
  Result<Seconds> time(int candidate, int runs) {
    const Clock::time_point begin = now_();
    for (int i = 0; i < runs; ++i) ACCORD_RETURN_IF_ERROR(blas_.multiply_by(candidate, product_, device_, stream_));
    ACCORD_RETURN_IF_ERROR(runtime_.synchronize(device_, stream_));
    return Seconds(now_() - begin) / runs;
  }

 private:
  Blas& blas_;
  Runtime& runtime_;
  const Product& product_;
  const Device device_;
  const Stream stream_;
  const Now& now_;
};

struct Candidate {
  int index = 0;
  Seconds best = Seconds::max();
};

// Runs each candidate once. Returns those that can compute the product.
Result<std::vector<Candidate>> warmed_up(Stopwatch& stopwatch, int candidates) {
  std::vector<Candidate> found;
  for (int i = 0; i < candidates; ++i) {
    const Result<Seconds> first = stopwatch.time(i, 1);
    if (first.status().code() == StatusCode::kUnsupported) continue;
    ACCORD_RETURN_IF_ERROR(first.status());
    found.push_back({i});
  }
  return found;
}

}  // namespace

Status choose_fastest(Blas& blas, Runtime& runtime, const Product& product, Device device, Stream stream,
                      const Now& now) {
  if (!product.uses_choice || product.beta != 0.0F) return Status();
  ACCORD_ASSIGN_OR_RETURN(const int count, blas.candidates(product, device));
  if (count < 2) return Status();
  ACCORD_ASSIGN_OR_RETURN(const bool is_capturing, runtime.is_capturing(device, stream));
  if (is_capturing) return Status();
  ACCORD_RETURN_IF_ERROR(runtime.synchronize(device, stream));
  Stopwatch stopwatch(blas, runtime, product, device, stream, now);
  ACCORD_ASSIGN_OR_RETURN(std::vector<Candidate> candidates, warmed_up(stopwatch, count));
  if (candidates.empty()) return Status();
  ACCORD_ASSIGN_OR_RETURN(const Seconds once, stopwatch.time(candidates.front().index, 1));
  const int runs = std::clamp(static_cast<int>(kRoundTime / std::max(once, Seconds(1e-9))), 1, kMostRuns);
  const auto is_faster = [](const Candidate& a, const Candidate& b) { return a.best < b.best; };
  for (int round = 0; round < kRounds && candidates.size() > 1; ++round) {
    for (Candidate& candidate : candidates) {
      ACCORD_ASSIGN_OR_RETURN(const Seconds time, stopwatch.time(candidate.index, runs));
      candidate.best = std::min(candidate.best, time);
    }
    const Seconds limit = std::min_element(candidates.begin(), candidates.end(), is_faster)->best * kMuchSlower;
    std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.best > limit; });
  }
  const Candidate& fastest = *std::min_element(candidates.begin(), candidates.end(), is_faster);
  const Candidate& first = candidates.front();
  return blas.choose(first.best < fastest.best * kFaster ? first.index : fastest.index, product, device);
}

}  // namespace accord::device
