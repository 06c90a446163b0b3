#pragma once
// Functions that a device runs on many threads at once. They are written once, for GPUs and for the tests' devices of
// host memory.
//
// A kernel is a struct of plain values (its arguments) with a name, the maximum number of threads per block, and the
// work of one thread:
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
// To compile it for GPUs, a file cuda/NAME.cu of its layer contains ACCORD_CUDA_KERNEL(Scale)
// (device/cuda/kernel.cuh). To make it available to the tests' devices, name it in tests/device/host_kernels.cpp. A
// kernel must be correct for any number of threads and lanes. If it declares `static constexpr int kLanes`, its
// blocks consist of whole warps of exactly that many lanes.
//
// If it declares `static constexpr int kMinBlocks`, the compiler limits its registers so that as many blocks of
// kThreads threads fit on a multiprocessor. With 1 it may use all that such a block can have.
//
// If it declares `static constexpr bool kStartsEarly = true`, its blocks may start while the kernel before it in the
// stream is still running (CUDA's programmatic dependent launch), in graphs too. Every thread must then call
// await_earlier() before it reads or writes anything that earlier kernels write or read. Until then it may read its
// arguments, and memory that no kernel of the stream writes. A kernel that waits for other ranks does not start early,
// and must not call start_next() before its last wait: blocks of the next kernel would take multiprocessors that a rank
// on the same device may need first.
//
// Block gives a thread its position and lets threads synchronize and exchange values:
//   thread(), threads()     its index in the block, and the number of threads in the block
//   block(), blocks()       the index of the block, and the number of blocks
//   first(), stride()       the start and the step of this thread's loop over all work
//   lane(), lanes()         its index in its warp of neighboring threads, and the warp's size, which divides threads()
//   sync(), sync_warp()     barrier of the block, or warp: writes before it are visible to the others after it
//   any(x)                  sync(), and whether x is true for any thread of the block
//   shared()                Grid::shared_bytes of memory that the block's threads share, aligned to 16
//   warp_sum(x), warp_max(x), block_sum(x), block_max(x)
//                           the result over all threads of the warp or block, the same for each of them. x is a float,
//                           a double or an integer of 32 or 64 bits. All threads must call them
//   from_lane(x, lane)      the value of x in another lane of the warp
//   multiply<dtype>(a, b, c)
//                           c += a b for matrices of the warp (device/fragments.hpp): a is Tiles [16][16] and b a
//                           TilePair [16][8], both of bfloat16 or float16; c is Sums [16][8]. Products are exact; the
//                           device chooses the order of their sum. All lanes must call it
//   load_tiles(row), load_transposed(row)
//                           Tiles from shared memory. `row` is this lane's row of 8 elements, aligned to 16: row
//                           lane % 8 of tile lane / 8. load_transposed returns the same tiles, each transposed. All
//                           lanes must call them
//   copy_async(to, from, is_present)
//                           starts to copy Words from the device's memory to shared memory, or zeros if not is_present.
//                           This thread sees them after wait_copies(), other threads after a sync() that follows it
//   wait_copies()           waits for all copies that this thread started
//   await_earlier()         returns once everything before this kernel in the stream has ended and its writes are
//                           visible; at once in kernels that do not start early
//   start_next()            lets the next kernel of the stream start, if it starts early, when all blocks have called
//                           this or ended. Without it, that is when all blocks have ended
//   commit_copies()         ends a group of copies: those that this thread started since the previous group
//   wait_groups<kPending>() waits for all groups of this thread but the last kPending. Like wait_copies() otherwise
//   pause()                 for loops that wait for other threads. A block may wait for other blocks only if they run
//                           together (Grid); otherwise those might never run
//   add(word, n)            adds to a word of this device and returns the old value; does not order other memory
//   add_acq_rel(word, n)    the same, ordered with other memory like load_acquire and store_release together. Adds of
//                           several threads form a chain: the last one sees what was written before all of them, and
//                           a store_release after it publishes that
//   load(word), store(word, x)
//                           access a 64-bit word that other devices or the host read or write, without
//                           ordering other memory
//   load_acquire(word), store_release(word, x)
//                           the same, ordered with other memory: writes made before the store, by all threads that met
//                           in a sync() before it, are visible after the load that reads the stored value
//   load(packet), store(packet, x)
//                           access a Packet, each half of which is read and written atomically
//   store_multicast(at, words)
//                           writes to the same place in every device's part. `at` is an address in Multicast::all
//                           (device/runtime.hpp), aligned to 16
//   sum_multicast<kSum>(at)
//                           the sum over all devices, in an order that the switch chooses. 16-bit floats are added in
//                           float32 and rounded once
//   fence_multicast()       separates this thread's accesses to a part by its own address from those by Multicast::all

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

/// The most that a thread reads or writes at once.
struct alignas(16) Words {
  std::uint32_t of[4];
};

/// The type as which a switch between devices adds up 16 bytes. Integers wrap.
enum class SwitchSum : std::uint8_t { kNone, kUInt32, kUInt64, kFloat16, kBFloat16, kFloat32, kFloat64 };

/// 8 bytes of data with a flag beside each half: a reader that sees both flags has both halves. This is NCCL's LL
/// protocol.
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
  /// True if the blocks wait for each other, so all of them must run at the same time. The device's number of
  /// multiprocessors then limits the number of blocks.
  bool together = false;
};

/// A kernel without its argument values.
struct Kernel {
  const char* name = "";
  std::size_t bytes = 0;       ///< size of its arguments
  int threads = 0;             ///< maximum per block
  int lanes = 1;               ///< the number of threads must be a multiple of this
  bool starts_early = false;   ///< calls await_earlier()
  const void* cuda = nullptr;  ///< null in builds without CUDA
};

/// The GPU code of `K`, defined by ACCORD_CUDA_KERNEL(K).
template <typename K>
const void* cuda_code();

/// Number of lanes that the kernel requires per warp; 1 if it accepts any.
template <typename K>
constexpr int lanes_of() {
  if constexpr (requires { K::kLanes; }) {
    static_assert(K::kThreads % K::kLanes == 0, "blocks must consist of whole warps");
    return K::kLanes;
  } else {
    return 1;
  }
}

/// The number of blocks for which the kernel's registers must suffice on a multiprocessor. If it does not say, 0:
/// nvcc then prefers several blocks to many registers.
template <typename K>
constexpr int min_blocks_of() {
  if constexpr (requires { K::kMinBlocks; }) {
    return K::kMinBlocks;
  } else {
    return 0;
  }
}

/// Whether the kernel calls Block::await_earlier().
template <typename K>
constexpr bool starts_early() {
  if constexpr (requires { K::kStartsEarly; }) {
    return K::kStartsEarly;
  } else {
    return false;
  }
}

template <typename K>
Kernel kernel_of() {
#ifdef ACCORD_HAS_CUDA
  return {K::kName, sizeof(K), K::kThreads, lanes_of<K>(), starts_early<K>(), cuda_code<K>()};
#else
  return {K::kName, sizeof(K), K::kThreads, lanes_of<K>(), starts_early<K>(), nullptr};
#endif
}

/// Launches a kernel in `stream` of `device`. Its arguments are copied.
Status launch(Runtime& runtime, const Kernel& kernel, const void* arguments, const Grid& grid, Device device,
              Stream stream);

template <typename K>
Status launch(Runtime& runtime, const K& kernel, const Grid& grid, Device device, Stream stream) {
  return launch(runtime, kernel_of<K>(), &kernel, grid, device, stream);
}

}  // namespace accord::device
