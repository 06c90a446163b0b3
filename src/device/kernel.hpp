#pragma once
// Functions that a device runs on many threads at once: written once, for GPUs and for the tests' devices of host memory.
//
// A kernel is a struct of plain values, its arguments, with a name, the most threads of a block, and what one thread does:
//
//   struct Scale {
//     static constexpr const char* kName = "scale";
//     static constexpr int kThreads = 256;
//     float* values;
//     std::size_t count;
//     float factor;
//     template <typename Block>
//     ACCORD_ON_DEVICE void operator()(Block& block) const {
//       for (std::size_t i = block.first(); i < count; i += block.stride()) values[i] *= factor;
//     }
//   };
//
// A file cuda/NAME.cu of its layer says ACCORD_CUDA_KERNEL(Scale) (device/cuda/kernel.cuh), which compiles it for GPUs. The devices of
// the tests have it once tests/device/host_kernels.cpp names it. It has to be right for any number of threads, and of lanes unless it says
// `static constexpr int kLanes`: its blocks are then of whole warps of so many, and of no others.
//
// Block is what a thread knows of its place, and how threads meet:
//   thread(), threads()     its number in the block, and how many there are
//   block(), blocks()       the same of the blocks
//   first(), stride()       where this thread begins in a loop over all there is to do, and how far apart its turns are
//   lane(), lanes()         its place among the threads of its warp, which are neighbours; lanes() divides threads()
//   sync(), sync_warp()     all threads of the block, or warp, meet: what they wrote before is seen by the others
//   any(x)                  sync(), and whether x holds for one of the block's threads
//   shared()                Grid::shared_bytes that the block's threads share, aligned to 16
//   warp_sum(x), warp_max(x), block_sum(x), block_max(x)    of the values of all its threads, the same for each; x: float, double or an
//                           integer of 32 or 64 bits. All threads have to call them
//   from_lane(x, lane)      the value of another lane of the warp
//   multiply<dtype>(a, b, c)    c += a b of the warp's matrices (device/fragments.hpp): a of Tiles [16][16], b a TilePair [16][8], both of
//                           bfloat16 or float16, c of Sums [16][8]; products are exact, the order of their sum is the device's. All lanes call it
//   load_tiles(row)         Tiles of which `row` is this lane's row of 8 elements, in shared memory and aligned to 16: of tile lane / 8 row lane % 8.
//   load_transposed(row)    All lanes call it; load_transposed gives the same tiles transposed, each by itself
//   pause()                 in a loop that waits for others; of several blocks only if they run together (Grid): others could not run else
//   add(word, n)            adds to a word of this device, gives what was there; no order of other memory
//   load(word), store(word, x)    a word of 64 bits that other devices or the host write or read, without order of other memory
//   load_acquire(word), store_release(word, x)    the same, in order with other memory: what was written before the store, by all threads that
//                           met in sync() before it, is seen after the load that finds it
//   load(packet), store(packet, x)    a Packet, of which each half is whole

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "device/fragments.hpp"

#ifdef __CUDACC__
#define ACCORD_ON_DEVICE __device__
#else
#define ACCORD_ON_DEVICE
#endif

namespace accord::device {

class Runtime;

/// What a thread reads or writes at once at most.
struct alignas(16) Words {
  std::uint32_t of[4];
};

/// 8 bytes of data with a flag beside each half: who reads both flags has both halves. NCCL's LL protocol.
struct alignas(16) Packet {
  struct Half {
    std::uint32_t data, flag;
  };
  Half half[2];
};

/// The threads that run a kernel.
struct Grid {
  int blocks = 1;
  int threads = 256;
  std::size_t shared_bytes = 0;
  /// The blocks wait for each other, so all of them run at the same time: no more than there are multiprocessors.
  bool together = false;
};

/// A kernel without its arguments.
struct Kernel {
  const char* name = "";
  std::size_t bytes = 0;       ///< of its arguments
  int threads = 0;             ///< the most that a block may have
  int lanes = 1;               ///< threads are a multiple of it
  const void* cuda = nullptr;  ///< null in builds without CUDA
};

/// The code of `K` for GPUs; ACCORD_CUDA_KERNEL(K) makes it.
template <typename K>
const void* cuda_code();

/// Those that each of a kernel's warps has; 1 if it takes any.
template <typename K>
constexpr int lanes_of() {
  if constexpr (requires { K::kLanes; }) {
    static_assert(K::kThreads % K::kLanes == 0, "blocks are of whole warps");
    return K::kLanes;
  } else {
    return 1;
  }
}

template <typename K>
Kernel kernel_of() {
#ifdef ACCORD_HAS_CUDA
  return {K::kName, sizeof(K), K::kThreads, lanes_of<K>(), cuda_code<K>()};
#else
  return {K::kName, sizeof(K), K::kThreads, lanes_of<K>(), nullptr};
#endif
}

/// Puts a kernel into `stream` of `device`. Its arguments are copied.
Status launch(Runtime& runtime, const Kernel& kernel, const void* arguments, const Grid& grid, Device device,
              Stream stream);

template <typename K>
Status launch(Runtime& runtime, const K& kernel, const Grid& grid, Device device, Stream stream) {
  return launch(runtime, kernel_of<K>(), &kernel, grid, device, stream);
}

}  // namespace accord::device
