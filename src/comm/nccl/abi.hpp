#pragma once
// The part of NCCL's C interface that accord calls, with its numbers, so that a build needs no NCCL headers and works
// with any library from 2.18 on. tests/unit/comm/cuda/nccl_header_test.cpp compares all of it with nccl.h.

#include <climits>
#include <cstddef>
#include <cstdint>

namespace accord::comm::nccl {

/// An ncclResult_t.
enum Code : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

/// An ncclDataType_t.
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,
  kFloat8e5m2 = 11,
};

/// An ncclRedOp_t; operations that are created have other numbers.
enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

/// An ncclScalarResidence_t.
enum Residence : int { kOnDevice = 0, kOnHost = 1 };

struct Communicator;  // what an ncclComm_t points to
struct Window;        // what an ncclWindow_t points to

struct UniqueId {
  char bytes[128];
};

/// Windows: the flag of ncclCommWindowRegister(), and the required alignment of memory in bytes.
inline constexpr int kSymmetric = 1;
inline constexpr std::size_t kWindowAlignment = 4096;

/// Flags of ncclCommShrink(): the second one if the parent has failed or was revoked.
inline constexpr int kShrinkDefault = 0;
inline constexpr int kShrinkAbort = 1;

/// An ncclConfig_t of 2.18, which later versions accept too.
struct Config {
  static constexpr int kUnset = INT_MIN;

  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUnset;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
};

/// NCCL's functions, named as there without the prefix. Streams are cudaStream_t.
struct Functions {
  int (*GetVersion)(int* version);
  const char* (*GetErrorString)(int code);
  const char* (*GetLastError)(Communicator* communicator);
  int (*GetUniqueId)(UniqueId* id);
  int (*CommInitRankConfig)(Communicator** communicator, int ranks, UniqueId id, int rank, Config* config);
  int (*CommSplit)(Communicator* parent, int color, int key, Communicator** communicator, Config* config);
  int (*CommDestroy)(Communicator* communicator);
  int (*CommAbort)(Communicator* communicator);
  int (*CommGetAsyncError)(Communicator* communicator, int* code);
  int (*CommCount)(Communicator* communicator, int* ranks);
  int (*CommUserRank)(Communicator* communicator, int* rank);
  int (*CommCuDevice)(Communicator* communicator, int* device);
  int (*RedOpCreatePreMulSum)(int* op, void* factor, int type, int residence, Communicator* communicator);
  int (*RedOpDestroy)(int op, Communicator* communicator);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*AllReduce)(const void* from, void* to, std::size_t count, int type, int op, Communicator*, void* stream);
  int (*Reduce)(const void* from, void* to, std::size_t count, int type, int op, int root, Communicator*, void* stream);
  int (*Broadcast)(const void* from, void* to, std::size_t count, int type, int root, Communicator*, void* stream);
  int (*AllGather)(const void* from, void* to, std::size_t count, int type, Communicator*, void* stream);
  int (*ReduceScatter)(const void* from, void* to, std::size_t count, int type, int op, Communicator*, void* stream);
  int (*Send)(const void* from, std::size_t count, int type, int peer, Communicator*, void* stream);
  int (*Recv)(void* to, std::size_t count, int type, int peer, Communicator*, void* stream);

  // Null if the library is too old for them.
  // From 2.19:
  int (*MemAlloc)(void** memory, std::size_t bytes);
  int (*MemFree)(void* memory);
  int (*CommRegister)(Communicator*, void* memory, std::size_t bytes, void** handle);
  int (*CommDeregister)(Communicator*, void* handle);
  // From 2.27:
  int (*CommWindowRegister)(Communicator*, void* memory, std::size_t bytes, Window** window, int flags);
  int (*CommWindowDeregister)(Communicator*, Window* window);
  int (*CommShrink)(Communicator* parent, int* excluded, int count, Communicator** communicator, Config*, int flags);
  // From 2.28:
  int (*CommRevoke)(Communicator*, int flags);
};

}  // namespace accord::comm::nccl
