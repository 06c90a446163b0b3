// operator new takes the memory of simulated processes from one range of addresses, which is emptied after a run: what
// a killed process leaves costs nothing, and addresses are the same whenever a run is repeated. Memory that was freed
// is overwritten, so that whoever still reads it gets nonsense.
//
// Blocks have the sizes 16, 32, ..., 1024, 2048, 4096, ... and a header; free blocks of one size are a list.
#include "simulation/heap.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "simulation/scheduler.hpp"

namespace accord::simulation {
namespace {

constexpr std::size_t kRange = std::size_t{16} << 30;
constexpr std::size_t kKept = std::size_t{64} << 20;  // memory that stays with this process between runs
constexpr std::size_t kSmall = 1024, kStep = 16, kClasses = kSmall / kStep + 32;
constexpr std::uint32_t kMaxProcesses = 1024;
constexpr int kFreed = 0xdd;
constexpr std::size_t kOverwritten = 512;

struct alignas(16) Header {
  std::uint32_t size_class = 0;
  std::uint32_t process = 0;
  std::uint32_t before = 0;  ///< bytes of the block before the header
  std::uint32_t bytes = 0;
};
static_assert(sizeof(Header) == 16);

struct Range {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  std::byte* next = nullptr;
  std::array<void*, kClasses> free = {};
  std::array<HeapUse, kMaxProcesses> used = {};
};
Range range;

std::size_t class_of(std::size_t bytes) {
  if (bytes <= kSmall) return (bytes + kStep - 1) / kStep;
  return kSmall / kStep + static_cast<std::size_t>(std::bit_width((bytes - 1) / kSmall));
}
std::size_t bytes_of(std::size_t size_class) {
  return size_class <= kSmall / kStep ? size_class * kStep : kSmall << (size_class - kSmall / kStep);
}

bool is_simulated(const void* memory) { return memory >= range.begin && memory < range.end; }

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (range.begin == nullptr) {
    const SimulatorWork work;  // no process holds this mapping
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* const memory = mmap(nullptr, kRange, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    range.begin = range.next = static_cast<std::byte*>(memory);
    range.end = range.begin + kRange;
  }
  const std::size_t extra = alignment > sizeof(Header) ? alignment : 0;
  const std::size_t size_class = class_of(bytes + extra + sizeof(Header));
  std::byte* block = static_cast<std::byte*>(range.free[size_class]);
  if (block != nullptr) {
    std::memcpy(&range.free[size_class], block, sizeof(void*));
  } else {
    block = range.next;
    range.next += bytes_of(size_class);
    if (range.next > range.end) std::abort();
  }
  std::byte* memory = block + sizeof(Header);
  if (extra > 0) memory += (alignment - reinterpret_cast<std::uintptr_t>(memory) % alignment) % alignment;
  const auto process = static_cast<std::uint32_t>(Scheduler::fiber()->process->pid) % kMaxProcesses;
  const Header header{.size_class = static_cast<std::uint32_t>(size_class),
                      .process = process,
                      .before = static_cast<std::uint32_t>(memory - sizeof(Header) - block),
                      .bytes = static_cast<std::uint32_t>(bytes)};
  std::memcpy(memory - sizeof(Header), &header, sizeof header);
  ++range.used[process].blocks;
  range.used[process].bytes += bytes;
  return memory;
}

void release(void* memory) {
  if (!is_simulated(memory)) return std::free(memory);
  Header header;
  std::byte* const bytes = static_cast<std::byte*>(memory);
  std::memcpy(&header, bytes - sizeof header, sizeof header);
  if (header.size_class == 0 || header.size_class >= kClasses) {
    std::fputs("a simulated process frees memory twice, or memory that it has not allocated\n", stderr);
    std::abort();
  }
  --range.used[header.process].blocks;
  range.used[header.process].bytes -= header.bytes;
  std::memset(memory, kFreed, std::min<std::size_t>(header.bytes, kOverwritten));
  std::byte* const block = bytes - sizeof header - header.before;
  std::memset(bytes - sizeof header, 0, sizeof header);
  std::memcpy(block, &range.free[header.size_class], sizeof(void*));
  range.free[header.size_class] = block;
}

void* allocate_anywhere(std::size_t bytes, std::size_t alignment) {
  if (Scheduler::fiber() != nullptr && !SimulatorWork::is_under_way()) return allocate(bytes, alignment);
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes == 0 ? 1 : bytes)
                           : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

HeapUse heap_use(int pid) { return range.used[static_cast<std::size_t>(pid) % kMaxProcesses]; }

void reset_heap() {
  if (range.next > range.begin + kKept) madvise(range.begin + kKept, kRange - kKept, MADV_DONTNEED);
  range.next = range.begin;
  range.free = {};
  range.used = {};
}

}  // namespace accord::simulation

void* operator new(std::size_t bytes) { return accord::simulation::allocate_anywhere(bytes, 16); }
void* operator new[](std::size_t bytes) { return accord::simulation::allocate_anywhere(bytes, 16); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return accord::simulation::allocate_anywhere(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return accord::simulation::allocate_anywhere(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { accord::simulation::release(memory); }
void operator delete[](void* memory) noexcept { accord::simulation::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { accord::simulation::release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { accord::simulation::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { accord::simulation::release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { accord::simulation::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { accord::simulation::release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { accord::simulation::release(memory); }
