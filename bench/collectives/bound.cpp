// The best that two ranks can do: written by hand for exactly two processes of one host, without anything around it.
//
//   private   all_reduce of float32 with private buffers of the caller: data for the peer is copied into shared slots,
//             and the result is copied out
//   shared    the same, with input and output of both ranks in memory that both have mapped, so nothing is copied
//   all_gather, all_to_all, broadcast
//             private buffers: copied into shared slots, and out of them
//   switch    one core changes from one process to another: every barrier of two ranks on one core needs at least one
//             switch
//   ping      one way of one cache line from core to core: shows whether the two cores are near or far
//
// Both all_reduces exchange one line with data and sequence number for up to 8 bytes. Above, each rank adds up one
// half and gets the other half's sum from the peer (two-shot), or each adds up everything (one-shot). The choice
// between them and the size of a slot are determined by measurement on first use of each size, because a bound should
// not depend on a guess. The process forks its second rank.
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "bench/worker.hpp"

namespace {

using accord::bench::Command;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr std::size_t kStreamFrom = std::size_t{8} << 20;  // larger results bypass the cache

struct alignas(64) Line {
  std::atomic<std::uint64_t> sequence = 0;
  std::atomic<std::uint64_t> value = 0;
};

struct Shared {
  std::array<Line, 2> packets[2];   // by parity of the call, then by rank
  std::array<Line, 2> ready, done;  // by rank: number of chunks copied in, chunks added up
  std::array<Line, 2> ping;
  Line choice;
  alignas(4096) std::array<std::byte, 2 * kMaxBytes> memory[2];  // by rank: slots, or input and output
};

Shared* shared;
int me, peer;
std::uint64_t calls = 0, chunks = 0;

void wait_for(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
  while (word.load(std::memory_order_acquire) < value) _mm_pause();
}

void sum(float* to, float* also_to, const float* a, const float* b, std::size_t count, bool streams) {
  std::size_t i = 0;
#ifdef __AVX__
  if (streams) {
    for (; i + 8 <= count; i += 8) {
      const __m256 value = _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
      _mm256_stream_ps(to + i, value);
      if (also_to != nullptr) _mm256_stream_ps(also_to + i, value);
    }
    _mm_sfence();
  }
#endif
  if (also_to == nullptr) {
    for (; i < count; ++i) to[i] = a[i] + b[i];
  } else {
    for (; i < count; ++i) to[i] = also_to[i] = a[i] + b[i];
  }
}

// At most two floats: a line with data and sequence number. Two lines alternate.
void by_packet(const float* input, float* output, std::size_t count) {
  auto& lines = shared->packets[++calls & 1];
  std::uint64_t mine = 0;
  std::memcpy(&mine, input, count * sizeof(float));
  lines[me].value.store(mine, std::memory_order_relaxed);
  lines[me].sequence.store(calls, std::memory_order_release);
  wait_for(lines[peer].sequence, calls);
  const std::uint64_t theirs = lines[peer].value.load(std::memory_order_relaxed);
  float other[2];
  std::memcpy(other, &theirs, sizeof other);
  for (std::size_t i = 0; i < count; ++i) output[i] = input[i] + other[i];
}

struct Method {
  bool two_shot;
  std::size_t slot;  // floats
};
constexpr std::array<Method, 5> kMethods = {
    {{false, 8 << 10}, {true, 8 << 10}, {true, 16 << 10}, {true, 32 << 10}, {true, 128 << 10}}};

// Two slots alternate; the third chunk waits until the peer has read the first one.
void reduce_by_slots(const float* input, float* output, std::size_t count, const Method& method) {
  for (std::size_t at = 0; at < count; at += method.slot) {
    const std::size_t n = std::min(method.slot, count - at), half = method.two_shot ? n / 2 : 0;
    const std::size_t place = (++chunks & 1) * 2 * method.slot;
    auto* mine = reinterpret_cast<float*>(shared->memory[me].data()) + place;
    auto* theirs = reinterpret_cast<float*>(shared->memory[peer].data()) + place;
    if (!method.two_shot) {
      std::memcpy(mine, input + at, n * sizeof(float));
      shared->ready[me].sequence.store(chunks, std::memory_order_release);
      wait_for(shared->ready[peer].sequence, chunks);
      sum(output + at, nullptr, input + at, theirs, n, false);
    } else {
      // Rank 0 adds up the first half, rank 1 the second.
      const std::size_t my_first = me == 0 ? 0 : half, my_count = me == 0 ? half : n - half;
      const std::size_t other_first = me == 0 ? half : 0, other_count = n - my_count;
      std::memcpy(mine + other_first, input + at + other_first, other_count * sizeof(float));
      shared->ready[me].sequence.store(chunks, std::memory_order_release);
      wait_for(shared->ready[peer].sequence, chunks);
      sum(output + at + my_first, mine + my_first, input + at + my_first, theirs + my_first, my_count, false);
      shared->done[me].sequence.store(chunks, std::memory_order_release);
      wait_for(shared->done[peer].sequence, chunks);
      std::memcpy(output + at + other_first, theirs + other_first, other_count * sizeof(float));
    }
  }
}

// A collective that only copies: the data that a rank sends and receives, and the part of its input that belongs in its
// own output.
struct Copies {
  const std::byte* sent = nullptr;  // null: nothing
  std::byte* received = nullptr;
  std::size_t bytes = 0;  // sent from rank to rank
  const std::byte* own = nullptr;
  std::byte* own_to = nullptr;
};

// Copies chunk by chunk through the sender's slots, two of which alternate. Data that stays on this rank is copied
// while the peer's is in transit.
void copy_by_slots(const Copies& copies, std::size_t slot) {
  for (std::size_t at = 0; at < copies.bytes || at == 0; at += slot) {
    const std::size_t n = std::min(slot, copies.bytes - at), place = (++chunks & 1) * slot;
    if (copies.sent != nullptr) {
      wait_for(shared->done[peer].sequence, chunks < 2 ? 0 : chunks - 2);
      std::memcpy(shared->memory[me].data() + place, copies.sent + at, n);
      shared->ready[me].sequence.store(chunks, std::memory_order_release);
    }
    if (copies.own != nullptr) std::memcpy(copies.own_to + at, copies.own + at, n);
    if (copies.received != nullptr) {
      wait_for(shared->ready[peer].sequence, chunks);
      std::memcpy(copies.received + at, shared->memory[peer].data() + place, n);
      shared->done[me].sequence.store(chunks, std::memory_order_release);
    }
  }
  // A rank that only sends need not be waited for, and a rank that only receives has already signaled.
  if (copies.sent == nullptr) shared->ready[me].sequence.store(chunks, std::memory_order_release);
  if (copies.received == nullptr) shared->done[me].sequence.store(chunks, std::memory_order_release);
}

// Each rank writes its half of the sum to both outputs.
void in_shared_memory(std::size_t count) {
  const auto place = [&](int rank, std::size_t first) {
    return reinterpret_cast<float*>(shared->memory[rank].data()) + first;
  };
  const std::size_t half = (count / 2 + 15) / 16 * 16, split = count < 64 ? count / 2 : half;
  const std::size_t first = me == 0 ? 0 : split, n = me == 0 ? split : count - split,
                    outputs = kMaxBytes / sizeof(float);
  ++chunks;
  shared->ready[me].sequence.store(chunks, std::memory_order_release);
  wait_for(shared->ready[peer].sequence, chunks);
  sum(place(me, outputs + first), place(peer, outputs + first), place(0, first), place(1, first), n,
      count * sizeof(float) >= kStreamFrom);
  shared->done[me].sequence.store(chunks, std::memory_order_release);
  wait_for(shared->done[peer].sequence, chunks);
}

void meet() {
  ++chunks;
  for (auto* lines : {&shared->ready, &shared->done}) {
    (*lines)[me].sequence.store(chunks, std::memory_order_release);
    wait_for((*lines)[peer].sequence, chunks);
  }
}

// Returns the fastest of several methods for this case. Rank 0 determines it and shares the result.
template <typename AnyMethod, std::size_t kCount, typename Run>
const AnyMethod& best_method(const Command& command, const std::array<AnyMethod, kCount>& methods, const Run& run) {
  static std::map<std::pair<std::string, std::size_t>, std::size_t> known;
  const auto [found, is_new] = known.try_emplace({command.collective, command.bytes}, 0);
  if (!is_new) return methods[found->second];
  const int repeat = static_cast<int>(std::clamp<std::size_t>((std::size_t{16} << 20) / (command.bytes + 1), 3, 2000));
  std::size_t best = 0;
  double least = 1e18;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    meet();
    const double time = accord::bench::time_of(repeat, [&] { run(methods[i]); });
    if (time < least) least = time, best = i;
  }
  meet();
  if (me == 0) shared->choice.value.store(best);
  meet();
  return methods[found->second = shared->choice.value.load()];
}

/// Measures a switch from one of two processes on the first core to the other.
std::string time_of_switches(int iterations) {
  accord::bench::pin_to_core(0);
  meet();
  const double time = accord::bench::time_of(iterations, [] { sched_yield(); });
  accord::bench::pin_to_core(me);
  return std::to_string(time / 2);  // there and back
}

constexpr std::array<std::size_t, 5> kSlots = {32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20};  // bytes

std::string time_of_copies(const Command& command) {
  const std::size_t half = command.bytes / 2;
  std::vector<std::byte> input(command.bytes, std::byte{1}), output(2 * command.bytes);
  Copies copies{input.data(), output.data(), command.bytes, input.data(), output.data() + command.bytes};
  if (command.collective == "all_to_all")
    copies = {input.data(), output.data(), half, input.data() + half, output.data() + half};
  if (command.collective == "broadcast" && me == 0) copies = {.sent = input.data(), .bytes = command.bytes};
  if (command.collective == "broadcast" && me == 1) copies = {.received = output.data(), .bytes = command.bytes};
  const auto run = [&copies](std::size_t slot) { copy_by_slots(copies, slot); };
  const std::size_t slot = best_method(command, kSlots, run);
  meet();
  const double time = accord::bench::time_of(command.iterations, [&] { run(slot); });
  if (copies.received != nullptr &&
      std::any_of(output.data(), output.data() + copies.bytes, [](std::byte value) { return value != std::byte{1}; }))
    return "error the copy is wrong";
  return std::to_string(time);
}

std::string measure(const Command& command) {
  const std::size_t count = command.bytes / sizeof(float);
  if (command.collective == "ping") {
    meet();
    static std::uint64_t turns = 0;
    const double round_trip = accord::bench::time_of(command.iterations, [&] {
      ++turns;
      if (me == 0) shared->ping[0].sequence.store(turns, std::memory_order_release);
      wait_for(shared->ping[peer].sequence, turns);
      if (me == 1) shared->ping[1].sequence.store(turns, std::memory_order_release);
    });
    return std::to_string(round_trip / 2);
  }
  if (command.collective == "switch") return time_of_switches(command.iterations);
  if (command.bytes > kMaxBytes) return "error at most 64 MiB are supported";
  if (command.collective == "all_gather" || command.collective == "all_to_all" || command.collective == "broadcast")
    return time_of_copies(command);
  if (command.collective == "shared") {
    auto* input = reinterpret_cast<float*>(shared->memory[me].data());
    std::fill(input, input + count, 1.0F);
    meet();
    if (count > 2) return std::to_string(accord::bench::time_of(command.iterations, [&] { in_shared_memory(count); }));
    return std::to_string(accord::bench::time_of(command.iterations, [&] { by_packet(input, input + 2, count); }));
  }
  std::vector<float> input(count, 1), output(count, 0);
  meet();
  if (count <= 2)
    return std::to_string(
        accord::bench::time_of(command.iterations, [&] { by_packet(input.data(), output.data(), count); }));
  const auto run = [&](const Method& method) { reduce_by_slots(input.data(), output.data(), count, method); };
  const Method method = best_method(command, kMethods, run);
  meet();
  const double time = accord::bench::time_of(command.iterations, [&] { run(method); });
  for (const float value : output)
    if (value != 2) return "error the sum is wrong";
  return std::to_string(time);
}

}  // namespace

int main(int, char** argv) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  shared = new (memory) Shared;
  const pid_t child = fork();
  if (child < 0) return 1;
  me = child == 0 ? 1 : 0;
  peer = 1 - me;
  accord::bench::pin_to_core(me);
  const int code = accord::bench::serve(std::string(argv[1]) + "." + std::to_string(me), measure);
  if (child > 0) waitpid(child, nullptr, 0);
  return code;
}
