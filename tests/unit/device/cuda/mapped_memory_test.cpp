// What the driver says about the physical allocations behind addresses.
#include <cuda.h>
#include <gtest/gtest.h>

#include <array>

#include "device/cuda/driver.hpp"
#include "device/cuda/runtime.hpp"

namespace accord::device {
namespace {

constexpr Device kMappedOn{DeviceType::kCuda, 0};

/// Calls of the driver that map memory.
struct MappingFunctions {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;

  bool load() {
    void* const library = cuda::driver().value()->library;
    return cuda::look_up(library, "cuMemGetAllocationGranularity", granularity).ok() &&
           cuda::look_up(library, "cuMemCreate", create).ok() && cuda::look_up(library, "cuMemRelease", release).ok() &&
           cuda::look_up(library, "cuMemAddressReserve", reserve).ok() &&
           cuda::look_up(library, "cuMemAddressFree", free).ok() && cuda::look_up(library, "cuMemMap", map).ok() &&
           cuda::look_up(library, "cuMemUnmap", unmap).ok();
  }
};

/// Three allocations side by side, the last of which other processes cannot open.
struct CudaMappedMemory : ::testing::Test {
  Runtime& runtime = cuda::runtime();
  MappingFunctions call;
  std::size_t size = 0;
  CUdeviceptr address = 0;
  std::array<CUmemGenericAllocationHandle, 3> handles = {};

  void SetUp() override {
    if (const Status viable = runtime.viable(); !viable.ok()) GTEST_SKIP() << viable.message();
    ASSERT_TRUE(call.load());
    const CurrentDevice current(runtime, kMappedOn);
    CUmemAllocationProp memory = {};
    memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ASSERT_EQ(call.granularity(&size, &memory, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), CUDA_SUCCESS);
    ASSERT_EQ(call.reserve(&address, 3 * size, 0, 0, 0), CUDA_SUCCESS);
    for (std::size_t i = 0; i < 3; ++i) {
      memory.requestedHandleTypes = i < 2 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
      ASSERT_EQ(call.create(&handles[i], size, &memory, 0), CUDA_SUCCESS);
      ASSERT_EQ(call.map(address + i * size, size, 0, handles[i], 0), CUDA_SUCCESS);
    }
  }
  void TearDown() override {
    if (IsSkipped() || address == 0) return;
    const CurrentDevice current(runtime, kMappedOn);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(call.unmap(address + i * size, size), CUDA_SUCCESS);
      EXPECT_EQ(call.release(handles[i]), CUDA_SUCCESS);
    }
    EXPECT_EQ(call.free(address, 3 * size), CUDA_SUCCESS);
  }
  MappedMemory behind(std::size_t offset, std::size_t bytes) {
    return runtime.mapped_memory(kMappedOn, reinterpret_cast<const void*>(address + offset), bytes).value();
  }
};

TEST_F(CudaMappedMemory, is_found_allocation_by_allocation) {
  const MappedMemory second = behind(size + 4096, size - 4096);
  EXPECT_EQ(second.allocations, 1);
  EXPECT_EQ(second.bytes, size);
  EXPECT_EQ(second.offset, 4096U);
  const MappedMemory both = behind(size - 1, 2);
  EXPECT_EQ(both.allocations, 2);
  EXPECT_EQ(both.bytes, 2 * size);
  EXPECT_EQ(both.offset, size - 1);
}

TEST_F(CudaMappedMemory, that_other_processes_cannot_open_does_not_count) {
  EXPECT_EQ(behind(2 * size, 1).allocations, 0);
  EXPECT_EQ(behind(0, 3 * size).allocations, 0);
}

TEST_F(CudaMappedMemory, is_not_that_of_an_ordinary_allocation) {
  void* const memory = runtime.allocate(kMappedOn, std::size_t{4} << 20).value();
  EXPECT_EQ(runtime.mapped_memory(kMappedOn, memory, std::size_t{4} << 20).value().allocations, 0);
  EXPECT_TRUE(runtime.release(kMappedOn, memory).ok());
  EXPECT_EQ(runtime.mapped_memory(kMappedOn, &runtime, 1).value().allocations, 0);
}

}  // namespace
}  // namespace accord::device
