#pragma once
// Kernels on GPUs: implements Block (device/kernel.hpp) in CUDA and makes kernels launchable from the host.

#include <cuda_runtime_api.h>

#include "device/cuda/known_kernels.hpp"
#include "device/kernel.hpp"

namespace accord::device::cuda {

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;

#define ACCORD_MULTIMEM_LOAD(WHAT, x, at)                                               \
  asm volatile("multimem.ld_reduce.relaxed.sys.global." WHAT " {%0, %1, %2, %3}, [%4];" \
               : "=r"((x).of[0]), "=r"((x).of[1]), "=r"((x).of[2]), "=r"((x).of[3])     \
               : "l"(at)                                                                \
               : "memory")

class Block {
 public:
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ int blocks() const { return static_cast<int>(gridDim.x); }
  __device__ std::size_t first() const { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
  __device__ std::size_t stride() const { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x % kWarp); }
  __device__ int lanes() const { return static_cast<int>(kWarp); }

  __device__ void sync() const { __syncthreads(); }
  __device__ bool any(bool x) const { return __syncthreads_or(x ? 1 : 0) != 0; }
  __device__ void sync_warp() const { __syncwarp(); }
  __device__ std::byte* shared() const {
    extern __shared__ __align__(16) unsigned char memory[];
    return reinterpret_cast<std::byte*>(memory);
  }

  template <typename T>
  __device__ T from_lane(T x, int lane) const {
    return __shfl_sync(kAllLanes, x, lane);
  }
  template <DType kDType>
  __device__ void multiply(const Tiles& a, const TilePair& b, Sums& c) const {
    static_assert(kDType == DType::kBFloat16 || kDType == DType::kFloat16);
    if constexpr (kDType == DType::kBFloat16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
          "%2, %3};"
          : "+f"(c.of[0]), "+f"(c.of[1]), "+f"(c.of[2]), "+f"(c.of[3])
          : "r"(a.of[0]), "r"(a.of[1]), "r"(a.of[2]), "r"(a.of[3]), "r"(b.of[0]), "r"(b.of[1]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
          "%2, %3};"
          : "+f"(c.of[0]), "+f"(c.of[1]), "+f"(c.of[2]), "+f"(c.of[3])
          : "r"(a.of[0]), "r"(a.of[1]), "r"(a.of[2]), "r"(a.of[3]), "r"(b.of[0]), "r"(b.of[1]));
    }
  }
  __device__ Tiles load_tiles(const void* row) const {
    Tiles x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.of[0]), "=r"(x.of[1]), "=r"(x.of[2]), "=r"(x.of[3])
                 : "r"(shared_address(row))
                 : "memory");
    return x;
  }
  __device__ Tiles load_transposed(const void* row) const {
    Tiles x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.of[0]), "=r"(x.of[1]), "=r"(x.of[2]), "=r"(x.of[3])
                 : "r"(shared_address(row))
                 : "memory");
    return x;
  }
  __device__ void copy_async(Words* to, const Words* from, bool is_present) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(is_present ? 16U : 0U)
                 : "memory");
  }
  __device__ void wait_copies() const { asm volatile("cp.async.wait_all;" ::: "memory"); }
  __device__ void commit_copies() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int kPending>
  __device__ void wait_groups() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }
  template <typename T>
  __device__ T warp_sum(T x) const {
    return over_warp(x, [](T a, T b) { return a + b; });
  }
  template <typename T>
  __device__ T warp_max(T x) const {
    return over_warp(x, [](T a, T b) { return a > b ? a : b; });
  }
  template <typename T>
  __device__ T block_sum(T x) const {
    return over_block(x, T{}, [](T a, T b) { return a + b; });
  }
  template <typename T>
  __device__ T block_max(T x) const {
    return over_block(x, x, [](T a, T b) { return a > b ? a : b; });
  }

  __device__ void await_earlier() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  }
  __device__ void start_next() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  }
  __device__ void pause() const { __nanosleep(20); }
  __device__ std::uint64_t add(std::uint64_t* word, std::uint64_t n) const {
    return atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(n));
  }
  __device__ std::uint64_t add_acq_rel(std::uint64_t* word, std::uint64_t n) const {
    std::uint64_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(word), "l"(n) : "memory");
    return old;
  }
  __device__ std::uint64_t load(const std::uint64_t* word) const {
    std::uint64_t x;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(word) : "memory");
    return x;
  }
  __device__ void store(std::uint64_t* word, std::uint64_t x) const {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(x) : "memory");
  }
  __device__ std::uint64_t load_acquire(const std::uint64_t* word) const {
    std::uint64_t x;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(word) : "memory");
    return x;
  }
  __device__ void store_release(std::uint64_t* word, std::uint64_t x) const {
    // This also publishes writes that other threads made before they met this one at a barrier: PTX's causality order
    // includes the barrier. A separate fence would wait for the same writes a second time.
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(x) : "memory");
  }
  __device__ Packet load(const Packet* packet) const {
    Packet x;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.half[0].data), "=r"(x.half[0].flag), "=r"(x.half[1].data), "=r"(x.half[1].flag)
                 : "l"(packet)
                 : "memory");
    return x;
  }
  __device__ void store(Packet* packet, const Packet& x) const {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(packet), "r"(x.half[0].data),
                 "r"(x.half[0].flag), "r"(x.half[1].data), "r"(x.half[1].flag)
                 : "memory");
  }

  __device__ void store_multicast(std::byte* at, const Words& x) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.of[0]), "r"(x.of[1]),
                 "r"(x.of[2]), "r"(x.of[3])
                 : "memory");
#endif
  }
  template <SwitchSum kSum>
  __device__ Words sum_multicast(const std::byte* at) const {
    Words x = {};
#if __CUDA_ARCH__ >= 900  // earlier architectures have no multicast
    if constexpr (kSum == SwitchSum::kFloat32) {
      ACCORD_MULTIMEM_LOAD("add.v4.f32", x, at);
    } else if constexpr (kSum == SwitchSum::kFloat16) {
      ACCORD_MULTIMEM_LOAD("add.acc::f32.v4.f16x2", x, at);
    } else if constexpr (kSum == SwitchSum::kBFloat16) {
      ACCORD_MULTIMEM_LOAD("add.acc::f32.v4.bf16x2", x, at);
    } else if constexpr (kSum == SwitchSum::kUInt32) {
      for (int i = 0; i < 4; ++i)
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.u32 %0, [%1];"
                     : "=r"(x.of[i])
                     : "l"(at + 4 * i)
                     : "memory");
    } else {
      for (int i = 0; i < 2; ++i) {
        std::uint64_t half;
        if constexpr (kSum == SwitchSum::kFloat64) {
          asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f64 %0, [%1];"
                       : "=l"(half)
                       : "l"(at + 8 * i)
                       : "memory");
        } else {
          asm volatile("multimem.ld_reduce.relaxed.sys.global.add.u64 %0, [%1];"
                       : "=l"(half)
                       : "l"(at + 8 * i)
                       : "memory");
        }
        x.of[2 * i] = static_cast<std::uint32_t>(half);
        x.of[2 * i + 1] = static_cast<std::uint32_t>(half >> 32);
      }
    }
#endif
    return x;
  }
  __device__ void fence_multicast() const { asm volatile("fence.proxy.alias;" ::: "memory"); }

 private:
  __device__ static unsigned shared_address(const void* memory) {
    return static_cast<unsigned>(__cvta_generic_to_shared(memory));
  }
  template <typename T, typename Combine>
  __device__ T over_warp(T x, Combine combine) const {
    for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
    return x;
  }
  template <typename T, typename Combine>
  __device__ T over_block(T x, T none, Combine combine) const {
    __shared__ T of_warps[kWarp];
    x = over_warp(x, combine);
    const unsigned warp = threadIdx.x / kWarp, warps = (blockDim.x + kWarp - 1) / kWarp;
    if (threadIdx.x % kWarp == 0) of_warps[warp] = x;
    __syncthreads();
    x = threadIdx.x % kWarp < warps ? of_warps[threadIdx.x % kWarp] : none;
    x = over_warp(x, combine);
    __syncthreads();
    return x;
  }
};

template <typename K>
__global__ void __launch_bounds__(K::kThreads, min_blocks_of<K>()) run(const __grid_constant__ K kernel) {
  static_assert(lanes_of<K>() == 1 || lanes_of<K>() == kWarp);
  Block block;
  kernel(block);
}

}  // namespace accord::device::cuda

#define ACCORD_JOINED_INNER(a, b) a##b
#define ACCORD_JOINED(a, b) ACCORD_JOINED_INNER(a, b)
#define ACCORD_CUDA_KERNEL(K)                                                                                       \
  template <>                                                                                                       \
  const void* accord::device::cuda_code<K>() {                                                                      \
    return reinterpret_cast<const void*>(&accord::device::cuda::run<K>);                                            \
  }                                                                                                                 \
  namespace {                                                                                                       \
  const accord::device::cuda::KnownKernel ACCORD_JOINED(known_kernel_, __COUNTER__){&accord::device::cuda_code<K>}; \
  }                                                                                                                 \
  static_assert(sizeof(K) <= 4096, "CUDA accepts at most 4096 bytes of arguments")
