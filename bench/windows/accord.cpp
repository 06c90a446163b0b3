// all_reduce on buffers in windows, on private buffers, and by hand with the same memory as two ranks could do it.
// The kinds, each with "+touch" if the caller writes its input and reads its output around each call, as callers do:
//   registered, ordinary   Communicator::all_reduce, out of place
//   push, pull, one_shot   by hand, in the window's own memory: two shots, the second one written or read; or all added
//                          by both ranks
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/window.hpp"
#include "bench/worker.hpp"

namespace {

using namespace accord;

constexpr std::size_t kLargest = std::size_t{64} << 20;

/// Two ranks, with their arrays and flags visible to each other.
class ByHand {
 public:
  ByHand(Window& window, std::size_t input, std::size_t output, std::size_t flags)
      : me_(static_cast<std::size_t>(window.rank())) {
    for (std::size_t r = 0; r < 2; ++r) {
      const std::span<std::byte> memory = window.peer(static_cast<Rank>(r));
      inputs_[r] = reinterpret_cast<float*>(memory.data() + input);
      outputs_[r] = reinterpret_cast<float*>(memory.data() + output);
      flags_[r] = reinterpret_cast<std::uint64_t*>(memory.data() + flags);
    }
  }

  void push(std::size_t count) {
    ++sequence_;
    meet(0);
    const std::size_t first = me_ * (count / 2), last = me_ == 0 ? count / 2 : count;
    const float *const a = inputs_[0], *const b = inputs_[1];
    float* const mine = outputs_[me_];
    float* const theirs = outputs_[1 - me_];
#pragma GCC ivdep
    for (std::size_t i = first; i < last; ++i) mine[i] = theirs[i] = a[i] + b[i];
    meet(1);
  }

  void pull(std::size_t count) {
    ++sequence_;
    meet(0);
    const std::size_t half = count / 2, first = me_ * half, last = me_ == 0 ? half : count;
    add(first, last);
    meet(1);
    const std::size_t other = me_ == 0 ? half : 0;
    std::memcpy(outputs_[me_] + other, outputs_[1 - me_] + other, (count - (last - first)) * sizeof(float));
    meet(2);
  }

  void one_shot(std::size_t count) {
    ++sequence_;
    meet(0);
    add(0, count);
    meet(1);
  }

 private:
  void add(std::size_t first, std::size_t last) {
    const float *const a = inputs_[0], *const b = inputs_[1];
    float* const out = outputs_[me_];
#pragma GCC ivdep
    for (std::size_t i = first; i < last; ++i) out[i] = a[i] + b[i];
  }
  void meet(std::size_t line) {
    std::atomic_ref<std::uint64_t>(flags_[1 - me_][8 * line]).store(sequence_, std::memory_order_release);
    const std::atomic_ref<std::uint64_t> flag(flags_[me_][8 * line]);
    while (flag.load(std::memory_order_acquire) < sequence_) __builtin_ia32_pause();
  }

  std::size_t me_;
  float* inputs_[2] = {};
  float* outputs_[2] = {};
  std::uint64_t* flags_[2] = {};
  std::uint64_t sequence_ = 0;
};

class Measuring {
 public:
  explicit Measuring(Communicator& comm)
      : comm_(comm),
        window_(*comm.window(2 * kLargest + (1 << 20))),
        input_(*window_.allocate(kLargest, 4096)),
        output_(*window_.allocate(kLargest, 4096)),
        flags_(*window_.allocate(4096, 4096)),
        by_hand_(window_, input_.offset(), output_.offset(), flags_.offset()),
        private_input_(kLargest / sizeof(float), 1.0F),
        private_output_(kLargest / sizeof(float)) {
    std::memset(input_.bytes().data(), 0, kLargest);
    std::memset(output_.bytes().data(), 0, kLargest);
  }

  std::string measure(const bench::Command& command) {
    const bool touches = command.collective.ends_with("+touch");
    const std::string kind = command.collective.substr(0, command.collective.find('+'));
    const std::size_t count = command.bytes / sizeof(float);
    const bool ordinary = kind == "ordinary";
    float* const input = ordinary ? private_input_.data() : reinterpret_cast<float*>(input_.bytes().data());
    float* const output = ordinary ? private_output_.data() : reinterpret_cast<float*>(output_.bytes().data());
    Status status = comm_.barrier();
    float seen = 0;
    const double microseconds = bench::time_of(command.iterations, [&] {
      if (touches)
        for (std::size_t i = 0; i < count; i += 16) input[i] += 1;
      if (kind == "push") {
        by_hand_.push(count);
      } else if (kind == "pull") {
        by_hand_.pull(count);
      } else if (kind == "one_shot") {
        by_hand_.one_shot(count);
      } else if (status.ok()) {
        status = comm_.all_reduce(ConstBuffer(input, count, DType::kFloat32), {output, count, DType::kFloat32, {}},
                                  ReduceOp::kSum);
      }
      if (touches)
        for (std::size_t i = 0; i < count; i += 16) seen += output[i];
    });
    if (seen == 0.5F) std::puts("");  // uses the value
    return status.ok() ? std::to_string(microseconds) : "error " + status.to_string();
  }

 private:
  Communicator& comm_;
  Window window_;
  WindowBlock input_, output_, flags_;
  ByHand by_hand_;
  std::vector<float> private_input_, private_output_;
};

}  // namespace

int main(int, char** argv) {
  accord::bench::pin_to_core(std::atoi(std::getenv("RANK")));
  accord::Result<accord::Communicator> comm = accord::Communicator::from_environment();
  if (!comm.ok()) {
    std::fprintf(stderr, "%s\n", comm.status().to_string().c_str());
    return 1;
  }
  Measuring measuring(*comm);
  return accord::bench::serve(std::string(argv[1]) + "." + std::to_string(comm->rank()),
                              [&](const accord::bench::Command& command) { return measuring.measure(command); });
}
