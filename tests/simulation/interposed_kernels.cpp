// The kernels that plans run on buffers, in pieces between which a thread may lose its core: a peer that changes a
// buffer too early is then noticed. Only the element type and the ops that simulated ranks use.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/copy.hpp"
#include "kernels/reduce/reduce.hpp"
#include "simulation/scheduler.hpp"

namespace accord::simulation {
namespace {

constexpr std::size_t kPieces = 4;

/// Calls `work` with the begin and end of each piece.
template <typename Work>
void in_pieces(std::size_t count, Work work) {
  const std::size_t piece = std::max<std::size_t>(1, (count + kPieces - 1) / kPieces);
  for (std::size_t begin = 0; begin < count; begin += piece) {
    Scheduler::current()->preempt();
    work(begin, std::min(count, begin + piece));
  }
  Scheduler::current()->preempt();
}

template <typename Combine>
void reduce(void* destination, void* mirror, const void* const* sources, int n, std::size_t count, Combine combine) {
  in_pieces(count, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto element = [&](int source) {
        std::int64_t value;
        std::memcpy(&value, static_cast<const std::byte*>(sources[source]) + i * sizeof value, sizeof value);
        return value;
      };
      std::int64_t all = element(0);
      for (int source = 1; source < n; ++source) all = combine(all, element(source));
      for (void* const to : {destination, mirror})
        if (to != nullptr) std::memcpy(static_cast<std::byte*>(to) + i * sizeof all, &all, sizeof all);
    }
  });
}

}  // namespace
}  // namespace accord::simulation

namespace accord::kernels {

void copy(void* destination, const void* source, std::size_t bytes, Store) {
  simulation::in_pieces(bytes, [&](std::size_t begin, std::size_t end) {
    std::memmove(static_cast<std::byte*>(destination) + begin, static_cast<const std::byte*>(source) + begin,
                 end - begin);
  });
}

ReduceKernel reduce_kernel(DType dtype, ReduceOp op) {
  if (dtype != DType::kInt64) return nullptr;
  if (op == ReduceOp::kSum)
    return [](void* destination, void* mirror, const void* const* sources, const std::complex<double>*, int n,
              std::size_t count) {
      const auto sum = [](std::int64_t a, std::int64_t b) {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      };
      simulation::reduce(destination, mirror, sources, n, count, sum);
    };
  if (op == ReduceOp::kMax)
    return [](void* destination, void* mirror, const void* const* sources, const std::complex<double>*, int n,
              std::size_t count) {
      const auto larger = [](std::int64_t a, std::int64_t b) { return std::max(a, b); };
      simulation::reduce(destination, mirror, sources, n, count, larger);
    };
  return nullptr;
}

}  // namespace accord::kernels
