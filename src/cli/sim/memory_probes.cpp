// Copies use the functions of the executor: memcpy into a rank's own memory, and kernels::copy() with the kind of store
// that StoreChooser picks for memory that other ranks read. A sample is one copy where ranks take turns, and some
// microseconds of copies elsewhere. What other programs disturb is left to the median.
#include "cli/sim/memory_probes.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/wait.hpp"
#include "exec/domain.hpp"
#include "exec/peer_memory.hpp"
#include "exec/store_chooser.hpp"
#include "exec/window_layout.hpp"
#include "kernels/reduce/reduce.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kSmallestCopy = 1 << 10, kLargestCopy = 32 << 20;
constexpr std::size_t kSmallestExchange = 64, kLargestExchange = 1 << 20;
constexpr std::size_t kSmallestRead = 64, kLargestRead = 16 << 20;
constexpr std::size_t kGrowth = 4;      // from one size to the next
constexpr std::size_t kCopyGrowth = 2;  // of copies: to find where the caches end
using exec::kLine, exec::kPacketData, exec::kPage;
constexpr double kSampleSeconds = 10e-6;
constexpr std::size_t kMostSamples = 2000, kFewestSamples = 5;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double seconds_of_clock() {
  std::vector<double> samples(1000);
  for (double& sample : samples) sample = seconds_since(Clock::now());
  return sim::figure_of(std::move(samples)).value;
}

// The compiler must not leave out a copy that nobody reads.
void keep(void* data) { asm volatile("" : : "r"(data) : "memory"); }

// Until then other ranks do not see what was written, nor a signal that follows.
void drain_stores() {
  std::atomic<int> word = 0;
  word.exchange(1, std::memory_order_seq_cst);  // a fence would do as well, but not for ThreadSanitizer
}

}  // namespace

Result<std::unique_ptr<SharedMemory>> SharedMemory::create(std::size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return errno_status(errno, "memory for the ranks");
  return std::unique_ptr<SharedMemory>(new SharedMemory(static_cast<std::byte*>(data), bytes));
}

SharedMemory::~SharedMemory() { munmap(data_, bytes_); }

struct MemoryProbes::Readable {
  int process = 0;
  const std::byte* buffer = nullptr;
};

struct MemoryProbes::Header {
  alignas(64) std::atomic<std::uint64_t> turn;
  alignas(64) std::atomic<bool> is_last;
  std::array<Readable, 2> readable;  // of ranks 0 and 1
  cpu_set_t processors;
  std::size_t samples;
  std::array<double, kMostSamples> seconds;  // of rank 1
};

struct MemoryProbes::Memory {
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  static std::unique_ptr<std::byte, Free> allocate() {
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(kPage, kLargestCopy));
    if (data != nullptr) std::memset(data, 1, kLargestCopy);
    return std::unique_ptr<std::byte, Free>(data);
  }
  std::unique_ptr<std::byte, Free> from = allocate(), to = allocate();
};

std::size_t MemoryProbes::shared_bytes() { return (sizeof(Header) + kPage - 1) / kPage * kPage + kLargestExchange; }

MemoryProbes::MemoryProbes(SharedMemory& shared, Communicator control, double seconds, sim::Statistic statistic)
    : shared_(shared),
      control_(std::move(control)),
      seconds_(seconds),
      statistic_(statistic),
      clock_seconds_(seconds_of_clock()),
      memory_(std::make_unique<Memory>()) {}

MemoryProbes::~MemoryProbes() = default;

MemoryProbes::Header& MemoryProbes::header() const { return *reinterpret_cast<Header*>(shared_.data()); }

void MemoryProbes::wait_for_turn(std::uint64_t turn) const {
  Waiter waiter(WaitPolicy::kSpin);
  while (header().turn.load(std::memory_order_acquire) != turn) waiter.pause();
}

void MemoryProbes::pass_turn(std::uint64_t turn) const { header().turn.store(turn, std::memory_order_release); }

// Tells whether the sample after `samples` others is the last one.
bool MemoryProbes::is_last(std::size_t samples, Clock::time_point began) const {
  return samples + 1 >= kMostSamples || (samples >= kFewestSamples && seconds_since(began) > seconds_);
}

// Returns the seconds of one call of `work`.
sim::Figure MemoryProbes::repeat(const std::function<void()>& work) const {
  work();
  const auto first = Clock::now();
  work();
  const int calls = static_cast<int>(std::clamp(kSampleSeconds / std::max(seconds_since(first), 1e-9), 1.0, 1e6));
  std::vector<double> samples;
  for (const auto began = Clock::now();
       samples.size() < kFewestSamples || (samples.size() < kMostSamples && seconds_since(began) < seconds_);) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) work();
    samples.push_back(seconds_since(begin) / calls);
  }
  return sim::figure_of(std::move(samples), statistic_);
}

Result<MemoryProbes::Copies> MemoryProbes::copies() {
  Copies result;
  const auto copy = [this](std::size_t bytes) {
    std::memcpy(memory_->to.get(), memory_->from.get(), bytes);
    keep(memory_->to.get());
  };
  if (control_.rank() == 0)
    for (std::size_t bytes = kSmallestCopy; bytes <= kLargestCopy; bytes *= kCopyGrowth)
      result.within.push_back({static_cast<double>(bytes), repeat([&] { copy(bytes); })});
  ACCORD_RETURN_IF_ERROR(control_.barrier());
  double mine = 2 * kLargestCopy / repeat([&] { copy(kLargestCopy); }).value;
  result.memory_rates.resize(static_cast<std::size_t>(control_.size()));
  ACCORD_RETURN_IF_ERROR(
      control_.all_gather(ConstBuffer(&mine, 1, DType::kFloat64),
                          Buffer{result.memory_rates.data(), result.memory_rates.size(), DType::kFloat64}));
  return result;
}

// Ranks 0 and 1 pass the turn to each other, and wait for it by `wait`. Returns the seconds of half round trips.
Result<std::vector<double>> MemoryProbes::half_round_trips(int trips_per_sample,
                                                           const std::function<void(std::uint64_t turn)>& wait) {
  std::vector<double> samples;
  ACCORD_RETURN_IF_ERROR(control_.barrier());
  const auto began = Clock::now();
  for (bool was_last = false; !was_last && control_.rank() < 2;) {
    if (control_.rank() == 0) header().is_last.store(is_last(samples.size(), began), std::memory_order_relaxed);
    const auto begin = Clock::now();
    for (int trip = 0; trip < trips_per_sample; ++trip) {
      if (control_.rank() == 1) wait(1);
      was_last = header().is_last.load(std::memory_order_relaxed);  // before rank 0 can begin the next sample
      pass_turn(control_.rank() == 0 ? 1 : 0);
      if (control_.rank() == 0) wait(0);
    }
    samples.push_back(seconds_since(begin) / (2 * trips_per_sample));
  }
  ACCORD_RETURN_IF_ERROR(control_.barrier());
  return samples;
}

// Beside other programs most round trips are those of moments in which both ranks run.
Result<sim::Figure> MemoryProbes::hop() {
  constexpr int kTripsPerSample = 10;
  ACCORD_ASSIGN_OR_RETURN(std::vector<double> samples,
                          half_round_trips(kTripsPerSample, [this](std::uint64_t turn) { wait_for_turn(turn); }));
  return samples.empty() ? sim::Figure() : sim::figure_of(std::move(samples));
}

// The part of each of two ranks that take turns. `round` counts from 1.
struct MemoryProbes::Handler {
  std::function<void(std::uint64_t round)> write, read;
};

// Rank 0 returns its time, and that of rank 1 is in the header. Both are medians: the minimum would be that of the rare
// moments in which both ranks share a cache.
sim::Figure MemoryProbes::exchange(const Handler& handler) {
  const bool writes = control_.rank() == 0;
  std::vector<double> samples;
  const auto began = Clock::now();
  for (bool was_last = false; !was_last;) {
    wait_for_turn(writes ? 0 : 1);
    was_last = writes ? is_last(samples.size(), began) : header().is_last.load(std::memory_order_relaxed);
    const std::uint64_t round = samples.size() + 1;
    const auto begin = Clock::now();
    writes ? handler.write(round) : handler.read(round);
    samples.push_back(std::max(seconds_since(begin) - clock_seconds_, 1e-10));
    if (writes) header().is_last.store(was_last, std::memory_order_relaxed);
    if (was_last && !writes) {
      header().samples = samples.size();
      std::copy(samples.begin(), samples.end(), header().seconds.begin());
    }
    pass_turn(writes ? 1 : 0);
  }
  if (writes) wait_for_turn(0);
  return sim::figure_of(std::move(samples));
}

void MemoryProbes::exchange(const Handler& handler, std::size_t bytes, std::vector<sim::Sized>& writes,
                            std::vector<sim::Sized>& reads) {
  writes.push_back({static_cast<double>(bytes), exchange(handler)});
  const Header& reader = header();
  if (control_.rank() == 0)
    reads.push_back({static_cast<double>(bytes),
                     sim::figure_of({reader.seconds.begin(), reader.seconds.begin() + reader.samples})});
}

Result<MemoryProbes::Exchanges> MemoryProbes::exchanges() {
  Exchanges result;
  std::byte* const shared = shared_.data() + shared_bytes() - kLargestExchange;
  std::byte *const from = memory_->from.get(), *const to = memory_->to.get();
  for (std::size_t bytes = kSmallestExchange; bytes <= kLargestExchange && control_.rank() < 2; bytes *= kGrowth) {
    exec::StoreChooser stores;
    const auto write = [&](std::uint64_t) {
      stores.run(bytes, [&](kernels::Store store) { kernels::copy(shared, from, bytes, store); });
      drain_stores();
    };
    const auto read = [&](std::uint64_t) {
      std::memcpy(to, shared, bytes);
      keep(to);
    };
    exchange({write, read}, bytes, result.writes, result.reads);
  }
  for (const std::size_t lines : {1, 4, 16, 64, 146}) {
    if (control_.rank() > 1) break;
    const volatile std::size_t data_bytes = kPacketData;  // not known to the compiler, as in the executor
    const auto word = [&](std::size_t line) { return exec::Domain::word(shared + line * kLine + kPacketData); };
    const auto write = [&](std::uint64_t round) {
      for (std::size_t line = 0; line < lines; ++line) {
        std::memcpy(shared + line * kLine, from + line * kPacketData, data_bytes);
        word(line).store(round, std::memory_order_release);
      }
      drain_stores();
    };
    const auto read = [&](std::uint64_t round) {
      for (std::size_t line = 0; line < lines; ++line) {
        while (word(line).load(std::memory_order_acquire) != round) cpu_relax();
        std::memcpy(to + line * kPacketData, shared + line * kLine, data_bytes);
      }
      keep(to);
    };
    exchange({write, read}, lines * kPacketData, result.packet_writes, result.packet_reads);
  }
  ACCORD_RETURN_IF_ERROR(control_.barrier());
  return result;
}

Result<sim::Sized> MemoryProbes::packet_sum() {
  constexpr std::size_t kLines = 64, kElements = kPacketData / sizeof(float);
  const kernels::ReduceKernel sum = kernels::reduce_kernel(DType::kFloat32, ReduceOp::kSum);
  std::byte *const from = memory_->from.get(), *const to = memory_->to.get();
  const std::byte* const packets = from + kLines * kPacketData;
  std::memset(from, 0, kLines * (kPacketData + kLine));
  ACCORD_RETURN_IF_ERROR(control_.barrier());
  const sim::Figure seconds = repeat([&] {
    for (std::size_t line = 0; line < kLines; ++line) {
      const std::array<const void*, 2> sources = {from + line * kPacketData, packets + line * kLine};
      sum(to + line * kPacketData, nullptr, sources.data(), nullptr, 2, kElements);
    }
    keep(to);
  });
  ACCORD_RETURN_IF_ERROR(control_.barrier());
  return sim::Sized{kLines * kPacketData, seconds};
}

// Both ranks read at once, as in a collective.
Result<std::vector<sim::Sized>> MemoryProbes::kernel_reads() {
  const Rank rank = control_.rank();
  if (rank < 2) header().readable[static_cast<std::size_t>(rank)] = {getpid(), memory_->from.get()};
  std::vector<double> seconds;
  for (std::size_t bytes = kSmallestRead; bytes <= kLargestRead; bytes *= kGrowth) {
    ACCORD_RETURN_IF_ERROR(control_.barrier());
    sim::Figure figure;
    bool refused = false;
    if (rank < 2) {
      const Readable other = header().readable[static_cast<std::size_t>(1 - rank)];
      figure = repeat([&] {
        refused |= exec::read_peer(other.process, other.buffer, {memory_->to.get(), bytes}) != 0;
      });
    }
    seconds.insert(seconds.end(), {static_cast<double>(bytes), refused ? 0 : figure.value, figure.spread});
  }
  ACCORD_RETURN_IF_ERROR(control_.broadcast(Buffer{seconds.data(), seconds.size(), DType::kFloat64}, 1));
  std::vector<sim::Sized> result;
  for (std::size_t i = 0; i < seconds.size() && seconds[i + 1] > 0; i += 3)
    result.push_back({seconds[i], {seconds[i + 1], seconds[i + 2]}});
  return result;
}

Result<sim::Figure> MemoryProbes::core_switch() {
  const Rank rank = control_.rank();
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  if (rank == 0) header().processors = before;
  ACCORD_RETURN_IF_ERROR(control_.barrier());
  if (rank == 1 && sched_setaffinity(0, sizeof before, &header().processors) != 0)
    return errno_status(errno, "moving a rank to the core of another");
  Result<std::vector<double>> samples = half_round_trips(1, [this](std::uint64_t turn) {
    while (header().turn.load(std::memory_order_acquire) != turn) sched_yield();
  });
  if (rank == 1) sched_setaffinity(0, sizeof before, &before);
  ACCORD_RETURN_IF_ERROR(samples.status());
  return samples->empty() ? sim::Figure() : sim::figure_of(*std::move(samples), statistic_);
}

}  // namespace accord::cli
